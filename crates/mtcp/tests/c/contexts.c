/* Contexts of one device, each with a thread of its own that greets its clients with the context's
 * number and echoes. Commands come from standard input, and each is answered with a line:
 * `begin N`, `end N`, `leave N`, whose thread ends without its context, `connect N ADDRESS PORT`,
 * which says how that ended. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <mtcp_epoll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXTS 4
#define EVENTS 64

struct context {
	pthread_t thread;
	atomic_int ready, over, leaves, attempt;
	struct sockaddr_in peer;
	char outcome[64];
};

static struct context contexts[CONTEXTS];

static void watch(mctx_t mctx, int ep, int id, uint32_t events)
{
	struct mtcp_epoll_event event = {.events = events, .data.sockid = id};

	assert(mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, id, &event) == 0);
}

static void serve(mctx_t mctx, int id)
{
	char buffer[4096];
	ssize_t n;

	while ((n = mtcp_read(mctx, id, buffer, sizeof(buffer))) > 0)
		assert(mtcp_write(mctx, id, buffer, n) == n);
	if (n == 0 || errno != EAGAIN)
		assert(mtcp_close(mctx, id) == 0);
}

static void *run(void *argument)
{
	struct context *self = argument;
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};
	struct mtcp_epoll_event events[EVENTS];
	char number = '0' + (self - contexts);
	int n, id, ep, listener, client = -1, error;
	socklen_t len = sizeof(error);
	mctx_t mctx = mtcp_create_context(self - contexts);

	assert(mctx);
	ep = mtcp_epoll_create(mctx, EVENTS);
	listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_setsock_nonblock(mctx, listener) == 0);
	assert(mtcp_bind(mctx, listener, (struct sockaddr *)&any, sizeof(any)) == 0);
	assert(mtcp_listen(mctx, listener, 1024) == 0);
	watch(mctx, ep, listener, MTCP_EPOLLIN);
	self->ready = 1;
	while (!self->over) {
		if (self->attempt && client < 0) {
			client = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
			assert(mtcp_setsock_nonblock(mctx, client) == 0);
			n = mtcp_connect(mctx, client, (struct sockaddr *)&self->peer, sizeof(self->peer));
			assert(n == -1 && errno == EINPROGRESS);
			watch(mctx, ep, client, MTCP_EPOLLOUT);
		}
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, 10);
		assert(n >= 0);
		for (int i = 0; i < n; i++) {
			id = events[i].data.sockid;
			if (id == client) {
				assert(mtcp_getsockopt(mctx, id, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
				snprintf(self->outcome, sizeof(self->outcome), "%s", strerror(error));
				assert(mtcp_close(mctx, client) == 0);
				client = -1;
				self->attempt = 0;
			} else if (id != listener) {
				serve(mctx, id);
			} else {
				while ((id = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
					assert(mtcp_setsock_nonblock(mctx, id) == 0);
					assert(mtcp_write(mctx, id, &number, 1) == 1);
					watch(mctx, ep, id, MTCP_EPOLLIN);
				}
				assert(errno == EAGAIN);
			}
		}
	}
	if (!self->leaves)
		mtcp_destroy_context(mctx);
	return NULL;
}

int main(int argc, char **argv)
{
	char line[128], command[16], address[64];
	struct mtcp_conf conf;
	unsigned n, port;
	int fields;

	assert(argc == 2 && mtcp_getconf(&conf) == 0);
	conf.num_cores = atoi(argv[1]);
	assert(conf.num_cores <= CONTEXTS && mtcp_setconf(&conf) == 0);
	assert(mtcp_init(NULL) == 0);
	while (fgets(line, sizeof(line), stdin)) {
		fields = sscanf(line, "%15s %u %63s %u", command, &n, address, &port);
		assert(fields >= 2 && n < CONTEXTS);
		if (strcmp(command, "begin") == 0) {
			contexts[n].ready = contexts[n].over = 0;
			assert(pthread_create(&contexts[n].thread, NULL, run, &contexts[n]) == 0);
			while (!contexts[n].ready)
				;
			puts("began");
		} else if (strcmp(command, "end") == 0 || strcmp(command, "leave") == 0) {
			contexts[n].leaves = *command == 'l';
			contexts[n].over = 1;
			assert(pthread_join(contexts[n].thread, NULL) == 0);
			puts("ended");
		} else {
			assert(strcmp(command, "connect") == 0 && fields == 4);
			contexts[n].peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
			contexts[n].peer.sin_addr.s_addr = inet_addr(address);
			contexts[n].attempt = 1;
			while (contexts[n].attempt)
				;
			puts(contexts[n].outcome);
		}
		fflush(stdout);
	}
	mtcp_destroy();
	return 0;
}
