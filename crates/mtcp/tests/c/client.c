/* Fetches /SIZE COUNT times over CONCURRENT connections, in each of THREADS contexts, and counts the
 * bytes. Usage: client ADDRESS PORT COUNT CONCURRENT SIZE EDGE THREADS */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <mtcp_api.h>
#include <mtcp_epoll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DESCRIPTORS 4096
#define EVENTS 128

struct fetch {
	char header[256];
	size_t header_length, body, body_expected;
	int asked;
};

static _Thread_local struct fetch fetches[DESCRIPTORS];
static struct sockaddr_in server = {.sin_family = AF_INET};
static const char *size;
static int count, concurrent, edge;
static _Thread_local int started, done, failed;

static void begin(mctx_t mctx, int ep)
{
	struct mtcp_epoll_event event = {.events = MTCP_EPOLLOUT};
	int id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

	assert(id >= 0 && id < DESCRIPTORS);
	memset(&fetches[id], 0, sizeof(fetches[id]));
	assert(mtcp_setsock_nonblock(mctx, id) == 0);
	assert(mtcp_connect(mctx, id, (struct sockaddr *)&server, sizeof(server)) == -1);
	assert(errno == EINPROGRESS);
	event.data.sockid = id;
	assert(mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, id, &event) == 0);
	started++;
}

static void end(mctx_t mctx, int ep, int id, int ok)
{
	assert(mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_DEL, id, NULL) == 0);
	assert(mtcp_close(mctx, id) == 0);
	done++;
	failed += !ok;
}

/* Returns -1 on an error, 0 at the end, 1 when there will be more. */
static int take(mctx_t mctx, int id, struct fetch *fetch)
{
	char buffer[8192], *blank, *length;
	ssize_t n;
	size_t used;

	while ((n = mtcp_read(mctx, id, buffer, sizeof(buffer))) > 0) {
		used = 0;
		while (fetch->body_expected == 0 && used < (size_t)n) {
			assert(fetch->header_length < sizeof(fetch->header) - 1);
			fetch->header[fetch->header_length++] = buffer[used++];
			blank = strstr(fetch->header, "\r\n\r\n");
			length = strstr(fetch->header, "Content-Length: ");
			if (blank && length)
				fetch->body_expected = strtoul(length + 16, NULL, 10);
		}
		fetch->body += n - used;
		if (fetch->body_expected > 0 && fetch->body >= fetch->body_expected)
			return 0;
	}
	return n < 0 && errno == EAGAIN ? 1 : -1;
}

static void *run(void *cpu)
{
	struct mtcp_epoll_event events[EVENTS];
	char request[128];
	int ep, n, id, err, more;
	socklen_t len;
	mctx_t mctx = mtcp_create_context((long)cpu);

	assert(mctx);
	assert(mtcp_init_rss(mctx, INADDR_ANY, 1, server.sin_addr.s_addr, server.sin_port) == 0);
	ep = mtcp_epoll_create(mctx, EVENTS);
	assert(ep >= 0);
	snprintf(request, sizeof(request), "GET /%s HTTP/1.0\r\n\r\n", size);

	while (done < count) {
		while (started < count && started - done < concurrent)
			begin(mctx, ep);
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, -1);
		assert(n > 0);
		for (int i = 0; i < n; i++) {
			id = events[i].data.sockid;
			if (events[i].events & MTCP_EPOLLERR) {
				len = sizeof(err);
				assert(mtcp_getsockopt(mctx, id, SOL_SOCKET, SO_ERROR, &err, &len) == 0);
				fprintf(stderr, "%s\n", strerror(err));
				end(mctx, ep, id, 0);
			} else if (!fetches[id].asked) {
				assert(events[i].events == MTCP_EPOLLOUT);
				assert(mtcp_write(mctx, id, request, strlen(request)) == (ssize_t)strlen(request));
				fetches[id].asked = 1;
				events[i].events = MTCP_EPOLLIN | edge;
				assert(mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_MOD, id, &events[i]) == 0);
			} else {
				more = take(mctx, id, &fetches[id]);
				if (more <= 0)
					end(mctx, ep, id, more == 0);
			}
		}
	}
	mtcp_destroy_context(mctx);
	return (void *)(long)failed;
}

int main(int argc, char **argv)
{
	pthread_t threads[16];
	struct mtcp_conf conf;
	int failures = 0;
	void *result;

	assert(argc == 8);
	server.sin_addr.s_addr = inet_addr(argv[1]);
	server.sin_port = htons(atoi(argv[2]));
	count = atoi(argv[3]);
	concurrent = atoi(argv[4]);
	size = argv[5];
	edge = atoi(argv[6]) ? MTCP_EPOLLET : 0;
	assert(mtcp_getconf(&conf) == 0);
	conf.num_cores = atoi(argv[7]);
	assert(conf.num_cores <= 16 && mtcp_setconf(&conf) == 0);
	assert(mtcp_init(NULL) == 0);
	for (long i = 0; i < conf.num_cores; i++)
		assert(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
	for (int i = 0; i < conf.num_cores; i++) {
		assert(pthread_join(threads[i], &result) == 0);
		failures += (long)result;
	}
	mtcp_destroy();
	return failures != 0;
}
