#include "test.h"
#include <sched.h>

/* A client of the kernel's talks to a listener of the stack. */
int main(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(7)};
	struct sockaddr *to = (struct sockaddr *)&addr;
	mp_channel *channel;
	mp_handle listener, server;
	struct mp_event event;
	char answer[5];
	int client;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
		SKIP("no user namespaces");
	channel = make_channel(NULL);
	EQUAL(mp_attach_tun(NULL, "mp0", "10.78.0.2/24"), -EINVAL);
	EQUAL(mp_attach_tun(channel, NULL, "10.78.0.2/24"), -EINVAL);
	EQUAL(mp_attach_tun(channel, "mp0", NULL), -EINVAL);
	EQUAL(mp_attach_tun(channel, "mp0", "10.78.0.2"), -EINVAL);
	attached(mp_attach_tun(channel, "mp0", "10.78.0.2/24"));

	inet_pton(AF_INET, "10.78.0.2", &addr.sin_addr);
	listener = mp_listen_on(channel, to, sizeof(addr), 8, NULL);
	CHECK(listener > 0);
	EQUAL(mp_accept(listener, MP_UNLIMITED, 0), -EOPNOTSUPP);
	CHECK(mp_accept(listener, MP_UNLIMITED, MP_ACCEPT_LWSOCKET) > 0);

	/* It connects while the channel is dispatched. */
	client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(connect(client, to, sizeof(addr)) < 0 && errno == EINPROGRESS);
	event = next_event(channel);
	EQUAL(event.cmd, MP_ACCEPT);
	CHECK(event.fd >= 0);
	server = mp_register(channel, event.fd, &addr, NULL, 0);
	CHECK(server > 0);
	CHECK(mp_read_stream(server) > 0);
	EQUAL(write(client, "hello", 5), 5);
	event = next_event(channel);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, 5);
	CHECK(event.cookie == &addr);
	EQUAL(mp_write_quiet(server, event.buf, 5), 0);
	EQUAL(mp_buffer_release(channel, event.buffer), 0);
	EQUAL(mp_flush(channel), 0);
	EQUAL(fcntl(client, F_SETFL, 0), 0);
	read_all(client, answer, sizeof(answer));
	EQUAL(memcmp(answer, "hello", 5), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
