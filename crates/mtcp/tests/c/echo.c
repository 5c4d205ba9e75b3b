/* Echoes on two ports, in a context for each of so many threads, as programs for mTCP are written:
 * what an event is about is compared, not tested; by edge, sockets stay registered for everything.
 * Usage: echo THREADS EDGE */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <mtcp_api.h>
#include <mtcp_epoll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS 2000
#define EVENTS 64
#define THREADS 4

struct connection {
	int open, ended;
	size_t at, length;
	char buffer[16384];
};

static int edge;
static volatile sig_atomic_t over;

static void watch(mctx_t mctx, int ep, int operation, int id, uint32_t events)
{
	struct mtcp_epoll_event event = {.events = events, .data.sockid = id};

	assert(mtcp_epoll_ctl(mctx, ep, operation, id, &event) == 0);
}

static int listen_on(mctx_t mctx, int ep, int port)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
	int id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

	assert(mtcp_setsock_nonblock(mctx, id) == 0);
	assert(mtcp_bind(mctx, id, (struct sockaddr *)&any, sizeof(any)) == 0);
	assert(mtcp_listen(mctx, id, 1024) == 0);
	watch(mctx, ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLIN);
	return id;
}

static void finish(mctx_t mctx, int id, struct connection *c)
{
	assert(mtcp_close(mctx, id) == 0);
	c->open = 0;
}

/* Writes what was read, and reads more, until either would block. */
static void serve(mctx_t mctx, int ep, int id, struct connection *c)
{
	ssize_t n;

	for (;;) {
		while (c->length > 0) {
			n = mtcp_write(mctx, id, c->buffer + c->at, c->length);
			if (n < 0 && errno == EAGAIN) {
				if (!edge)
					watch(mctx, ep, MTCP_EPOLL_CTL_MOD, id, MTCP_EPOLLOUT);
				return;
			}
			if (n < 0)
				return finish(mctx, id, c);
			c->at += n;
			c->length -= n;
		}
		if (c->ended)
			return finish(mctx, id, c);
		n = mtcp_read(mctx, id, c->buffer, sizeof(c->buffer));
		if (n < 0 && errno == EAGAIN) {
			if (!edge)
				watch(mctx, ep, MTCP_EPOLL_CTL_MOD, id, MTCP_EPOLLIN);
			return;
		}
		if (n < 0)
			return finish(mctx, id, c);
		c->ended = n == 0;
		c->at = 0;
		c->length = n;
	}
}

static void *run(void *cpu)
{
	struct connection *connections = calloc(CONNECTIONS, sizeof(*connections));
	struct mtcp_epoll_event events[EVENTS];
	int n, id, ep, listeners[2];
	mctx_t mctx = mtcp_create_context((long)cpu);

	assert(mctx && connections);
	ep = mtcp_epoll_create(mctx, EVENTS);
	for (int i = 0; i < 2; i++)
		listeners[i] = listen_on(mctx, ep, 7 + i);
	printf("context %ld is ready\n", (long)cpu);
	fflush(stdout);
	while (!over) {
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, -1);
		assert(n >= 0 || errno == EINTR);
		for (int i = 0; i < n; i++) {
			id = events[i].data.sockid;
			if (id != listeners[0] && id != listeners[1]) {
				/* No event of what was closed before it in this turn. */
				assert(connections[id].open);
				switch (events[i].events) {
				case MTCP_EPOLLIN:
				case MTCP_EPOLLOUT:
					serve(mctx, ep, id, &connections[id]);
					break;
				case MTCP_EPOLLERR:
					finish(mctx, id, &connections[id]);
					break;
				default:
					assert(!"an event that was not asked for");
				}
				continue;
			}
			assert(events[i].events == MTCP_EPOLLIN);
			while ((id = mtcp_accept(mctx, events[i].data.sockid, NULL, NULL)) >= 0) {
				assert(id < CONNECTIONS && !connections[id].open);
				memset(&connections[id], 0, sizeof(connections[id]));
				connections[id].open = 1;
				assert(mtcp_setsock_nonblock(mctx, id) == 0);
				watch(mctx, ep, MTCP_EPOLL_CTL_ADD, id,
				      edge ? MTCP_EPOLLIN | MTCP_EPOLLOUT | MTCP_EPOLLET : MTCP_EPOLLIN);
			}
			assert(errno == EAGAIN);
		}
	}
	mtcp_destroy_context(mctx);
	free(connections);
	return NULL;
}

static void stop(int signal)
{
	UNUSED(signal);
	over = 1;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	struct mtcp_conf conf;

	assert(argc == 3);
	edge = atoi(argv[2]);
	assert(mtcp_getconf(&conf) == 0);
	conf.num_cores = atoi(argv[1]);
	conf.max_concurrency = CONNECTIONS;
	/* As mTCP's: so small that each large write is partial. */
	conf.rcvbuf_size = conf.sndbuf_size = 8192;
	assert(conf.num_cores <= THREADS && mtcp_setconf(&conf) == 0);
	assert(mtcp_init(NULL) == 0);
	mtcp_register_signal(SIGINT, stop);
	for (long i = 0; i < conf.num_cores; i++)
		assert(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
	for (int i = 0; i < conf.num_cores; i++)
		assert(pthread_join(threads[i], NULL) == 0);
	mtcp_destroy();
	return 0;
}
