/* Echoes, over mTCP's calls or, with -DKERNEL, over the kernel's. A message that begins with `b` is answered
 * with 10 MB, one with `c` after two seconds of computing. Usage: server [CPU], on port 7 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <time.h>
#include <unistd.h>

#ifdef KERNEL
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#define mtcp_epoll_event epoll_event
#define sockid fd
#define MTCP_EPOLLIN EPOLLIN
#define MTCP_EPOLLOUT EPOLLOUT
#define MTCP_EPOLL_CTL_ADD EPOLL_CTL_ADD
#define MTCP_EPOLL_CTL_MOD EPOLL_CTL_MOD
#define mtcp_socket(m, ...) socket(__VA_ARGS__)
#define mtcp_bind(m, ...) bind(__VA_ARGS__)
#define mtcp_listen(m, ...) listen(__VA_ARGS__)
#define mtcp_accept(m, ...) accept(__VA_ARGS__)
#define mtcp_read(m, ...) read(__VA_ARGS__)
#define mtcp_write(m, ...) write(__VA_ARGS__)
#define mtcp_close(m, ...) close(__VA_ARGS__)
#define mtcp_epoll_create(m, n) epoll_create(n)
#define mtcp_epoll_ctl(m, ...) epoll_ctl(__VA_ARGS__)
#define mtcp_epoll_wait(m, ...) epoll_wait(__VA_ARGS__)
#define mtcp_setsock_nonblock(m, fd) fcntl(fd, F_SETFL, O_NONBLOCK)
#else
#include <mtcp_api.h>
#include <mtcp_epoll.h>
static mctx_t mctx;
#endif

#define CONNECTIONS 4096
#define EVENTS 256

static char bytes[65536], bulk[16384];
static long left[CONNECTIONS];
static int ep;

static void watch(int operation, int id, unsigned events)
{
	struct mtcp_epoll_event event = {.events = events, .data.sockid = id};

	if (mtcp_epoll_ctl(mctx, ep, operation, id, &event) != 0)
		exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* A piece for each event: a flow whose client keeps up does not hold up the others. */
static void send_bulk(int id)
{
	ssize_t n = mtcp_write(mctx, id, bulk, MIN(left[id], (long)sizeof(bulk)));

	if (n < 0 && errno != EAGAIN)
		exit(3);
	left[id] -= MAX(n, 0);
	watch(MTCP_EPOLL_CTL_MOD, id, left[id] > 0 ? MTCP_EPOLLOUT : MTCP_EPOLLIN);
}

static void serve(int id)
{
	ssize_t n = mtcp_read(mctx, id, bytes, sizeof(bytes));

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		mtcp_close(mctx, id);
		return;
	}
	if (*bytes == 'b') {
		left[id] = 10000000;
		return send_bulk(id);
	}
	if (*bytes == 'c')
		for (double end = now() + 2; now() < end;)
			;
	if (mtcp_write(mctx, id, bytes, n) != n)
		exit(2);
}

int main(int argc, char **argv)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};
	struct mtcp_epoll_event events[EVENTS];
	int listener, id, n;
	cpu_set_t cpus;

	if (argc > 1) {
		CPU_ZERO(&cpus);
		CPU_SET(atoi(argv[1]), &cpus);
		sched_setaffinity(0, sizeof(cpus), &cpus);
	}
	signal(SIGPIPE, SIG_IGN);
#ifndef KERNEL
	struct mtcp_conf conf = {.num_cores = 1, .max_concurrency = CONNECTIONS, .tcp_timewait = 0, .tcp_timeout = -1};

	mtcp_setconf(&conf);
	if (mtcp_init(NULL) != 0 || !(mctx = mtcp_create_context(0)))
		return perror("mtcp"), 1;
#endif
	ep = mtcp_epoll_create(mctx, EVENTS);
	listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
#ifdef KERNEL
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
#endif
	mtcp_setsock_nonblock(mctx, listener);
	if (mtcp_bind(mctx, listener, (struct sockaddr *)&any, sizeof(any)) != 0 ||
	    mtcp_listen(mctx, listener, CONNECTIONS) != 0)
		return perror("listen"), 1;
	watch(MTCP_EPOLL_CTL_ADD, listener, MTCP_EPOLLIN);
	puts("ready");
	fflush(stdout);
	for (;;) {
		n = mtcp_epoll_wait(mctx, ep, events, EVENTS, -1);
		for (int i = 0; i < n; i++) {
			id = events[i].data.sockid;
			if (id == listener) {
				while ((id = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
					mtcp_setsock_nonblock(mctx, id);
					watch(MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLIN);
				}
			} else if (events[i].events & MTCP_EPOLLOUT) {
				send_bulk(id);
			} else {
				serve(id);
			}
		}
	}
}
