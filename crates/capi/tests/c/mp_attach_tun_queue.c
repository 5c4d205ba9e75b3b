#include "test.h"
#include <sched.h>

#define CLIENTS 64
#define NETWORK "10.78.0.2/24"

/* Two threads with a stack each on a queue of one device. Clients of the kernel's talk to both, and both connect to a
 * listener of the kernel's. */

static struct sockaddr_in stacks = {.sin_family = AF_INET};
static struct sockaddr_in outside = {.sin_family = AF_INET};
static pthread_barrier_t barrier;
static int over;

struct server {
	pthread_t thread;
	int accepted, connected;
	struct mp_stats stats;
};

static void handle(struct server *self, mp_channel *channel, const struct mp_event *event)
{
	mp_handle peer;

	switch (event->cmd) {
	case MP_ACCEPT:
		peer = mp_register(channel, event->fd, NULL, NULL, 0);
		CHECK(peer > 0);
		CHECK(mp_read_stream(peer) > 0);
		self->accepted++;
		break;
	case MP_CONNECT:
		EQUAL(event->size, 0);
		self->connected++;
		break;
	case MP_READ:
		CHECK(event->size >= 0);
		if (event->size == 0) {
			EQUAL(mp_close(event->handle), 0);
			break;
		}
		EQUAL(mp_write_quiet(event->handle, event->buf, event->size), 0);
		EQUAL(mp_buffer_release(channel, event->buffer), 0);
		EQUAL(mp_flush(channel), 0);
		break;
	default:
		EQUAL(event->cmd, 0);
	}
}

static void *serve(void *argument)
{
	struct server *self = argument;
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	mp_handle listener;

	EQUAL(mp_attach_tun_queue(channel, "mp0", NETWORK, 2), 0);
	listener = mp_listen_on(channel, (struct sockaddr *)&stacks, sizeof(stacks), CLIENTS, NULL);
	CHECK(listener > 0);
	CHECK(mp_accept(listener, MP_UNLIMITED, MP_ACCEPT_LWSOCKET) > 0);
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(mp_connect_to(channel, (struct sockaddr *)&outside, sizeof(outside), NULL) > 0);
	while (self->connected < CLIENTS || !__atomic_load_n(&over, __ATOMIC_ACQUIRE))
		if (mp_dispatch(channel, SECOND / 100, &event) == 1)
			handle(self, channel, &event);
	EQUAL(mp_stats(channel, &self->stats, sizeof(self->stats)), 0);
	pthread_barrier_wait(&barrier);
	EQUAL(mp_destroy(channel), 0);
	return NULL;
}

/* What the call refuses; returns only where there may be devices. */
static void refusals(void)
{
	mp_channel *channel = make_channel(NULL), *second = make_channel(NULL), *third = make_channel(NULL);
	mp_channel *full = make_channel(NULL);

	EQUAL(mp_attach_tun_queue(NULL, "mp0", NETWORK, 2), -EINVAL);
	EQUAL(mp_attach_tun_queue(channel, NULL, NETWORK, 2), -EINVAL);
	EQUAL(mp_attach_tun_queue(channel, "mp0", NULL, 2), -EINVAL);
	EQUAL(mp_attach_tun_queue(channel, "mp0", NETWORK, 0), -EINVAL);
	attached(mp_attach_tun_queue(channel, "mp0", NETWORK, 2));
	EQUAL(mp_attach_tun_queue(second, "mp0", NETWORK, 3), -EINVAL);
	EQUAL(mp_attach_tun_queue(second, "mp0", "10.79.0.2/24", 2), -EINVAL);
	/* A call that fails leaves its queue to the next one. */
	while (mp_attach_tun(full, "full%d", "10.80.0.2/24") == 0)
		;
	EQUAL(mp_attach_tun_queue(full, "mp0", NETWORK, 2), -MP_EHANDLES);
	EQUAL(mp_destroy(full), 0);
	EQUAL(mp_attach_tun_queue(second, "mp0", NETWORK, 2), 0);
	EQUAL(mp_attach_tun_queue(third, "mp0", NETWORK, 2), -EBUSY);
	EQUAL(mp_attach_tun_queue(third, "many", NETWORK, 100000), -E2BIG);
	/* So does a channel that ends. */
	EQUAL(mp_destroy(second), 0);
	second = make_channel(NULL);
	EQUAL(mp_attach_tun_queue(second, "mp0", NETWORK, 2), 0);
	/* The device is gone with them, and its name is free. */
	EQUAL(mp_destroy(channel), 0);
	EQUAL(mp_destroy(second), 0);
	EQUAL(mp_attach_tun_queue(third, "mp0", NETWORK, 2), 0);
	EQUAL(mp_destroy(third), 0);
}

/* A device that goes with its last channel is in nobody's way, also while another thread closes it. */
static void *come_and_go(void *argument)
{
	mp_channel *channel;

	for (int i = 0; i < 40; i++) {
		channel = make_channel(NULL);
		EQUAL(mp_attach_tun_queue(channel, "mp1", NETWORK, 2), 0);
		EQUAL(mp_destroy(channel), 0);
	}
	return argument;
}

int main(void)
{
	pthread_t others[2];
	struct server servers[2] = {0};
	socklen_t len = sizeof(outside);
	int clients[CLIENTS], listener;
	char answer[5];

	if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
		SKIP("no user namespaces");
	refusals();
	for (int i = 0; i < 2; i++)
		EQUAL(pthread_create(&others[i], NULL, come_and_go, NULL), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(pthread_join(others[i], NULL), 0);

	stacks.sin_port = htons(7);
	inet_pton(AF_INET, "10.78.0.2", &stacks.sin_addr);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	EQUAL(bind(listener, (struct sockaddr *)&outside, sizeof(outside)), 0);
	EQUAL(listen(listener, 2 * CLIENTS), 0);
	EQUAL(getsockname(listener, (struct sockaddr *)&outside, &len), 0);
	inet_pton(AF_INET, "10.78.0.1", &outside.sin_addr);
	EQUAL(pthread_barrier_init(&barrier, NULL, 2), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(pthread_create(&servers[i].thread, NULL, serve, &servers[i]), 0);
	for (int i = 0; i < 2 * CLIENTS; i++)
		CHECK(accept(listener, NULL, NULL) >= 0);

	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = socket(AF_INET, SOCK_STREAM, 0);
		EQUAL(connect(clients[i], (struct sockaddr *)&stacks, sizeof(stacks)), 0);
		EQUAL(write(clients[i], "hello", 5), 5);
		read_all(clients[i], answer, sizeof(answer));
		EQUAL(memcmp(answer, "hello", 5), 0);
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++) {
		struct mp_stats *stats = &servers[i].stats;

		EQUAL(pthread_join(servers[i].thread, NULL), 0);
		CHECK(servers[i].accepted > CLIENTS / 8);
		CHECK(stats->packets_received >= 2 * CLIENTS && stats->packets_sent >= 2 * CLIENTS);
		EQUAL(stats->segments_unowned, 0);
		EQUAL(stats->foreign_sent + stats->foreign_received + stats->foreign_dropped, 0);
	}
	EQUAL(servers[0].accepted + servers[1].accepted, CLIENTS);
	return 0;
}
