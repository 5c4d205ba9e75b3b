/* What a stack in a thread of its own does beside the program, one thing a command:
 * `compute`: calls nothing from the first connection on until a line comes on standard input, then echoes what
 * the second one has sent; `destroy`: writes all that there is room for, destroys its context, and prints how much
 * that was; `unread`: closes a connection whose bytes it has not read; `fork`: has a child try its context. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <mtcp_epoll.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "asleep.h"

static mctx_t mctx;
static int listener;
static atomic_int waiting;

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = 0;

	assert(tasks);
	while (readdir(tasks))
		count++;
	closedir(tasks);
	return count - 2;
}

/* A line on standard output, and nothing called until one comes back. */
static void compute(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	puts("computing");
	fflush(stdout);
	while (poll(&input, 1, 0) == 0)
		;
}

static void echo_late(void)
{
	char buffer[64];
	int first = mtcp_accept(mctx, listener, NULL, NULL), second;

	assert(first >= 0);
	compute();
	second = mtcp_accept(mctx, listener, NULL, NULL);
	assert(second >= 0);
	for (ssize_t n, got = 0; got < (ssize_t)sizeof(buffer); got += n) {
		n = mtcp_read(mctx, second, buffer, sizeof(buffer));
		assert(n > 0 && mtcp_write(mctx, second, buffer, n) == n);
	}
	mtcp_destroy_context(mctx);
}

static void write_and_destroy(void)
{
	static char bytes[10000];
	int id = mtcp_accept(mctx, listener, NULL, NULL);
	long total = 0;
	ssize_t n;

	assert(id >= 0 && mtcp_setsock_nonblock(mctx, id) == 0);
	memset(bytes, 7, sizeof(bytes));
	while ((n = mtcp_write(mctx, id, bytes, sizeof(bytes))) > 0)
		total += n;
	assert(errno == EAGAIN);
	mtcp_destroy_context(mctx);
	assert(threads() == 1);
	printf("%ld\n", total);
	fflush(stdout);
}

static void close_unread(void)
{
	struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
	int id = mtcp_accept(mctx, listener, NULL, NULL), ep = mtcp_epoll_create(mctx, 1);

	assert(id >= 0 && mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, id, &event) == 0);
	assert(mtcp_epoll_wait(mctx, ep, &event, 1, -1) == 1 && event.events == MTCP_EPOLLIN);
	assert(mtcp_close(mctx, id) == 0);
	/* The other end has learnt of it when it closes. */
	assert(mtcp_accept(mctx, listener, NULL, NULL) >= 0);
	mtcp_destroy_context(mctx);
}

/* Waits for what never comes. */
static void *wait_beside(void *unused)
{
	struct mtcp_epoll_event event;
	int ep = mtcp_epoll_create(mctx, 1);

	waiting = gettid();
	assert(mtcp_epoll_wait(mctx, ep, &event, 1, -1) == -1 && errno == EINTR);
	return unused;
}

static void fork_beside(void)
{
	struct mtcp_epoll_event event;
	int status, id = mtcp_accept(mctx, listener, NULL, NULL), ep = mtcp_epoll_create(mctx, 1);
	pthread_t beside;
	pid_t child;
	char byte;

	assert(id >= 0 && pthread_create(&beside, NULL, wait_beside, NULL) == 0);
	while (!waiting)
		;
	until_asleep(waiting);
	child = fork();
	if (child == 0) {
		assert(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0) == -1 && errno == ECHILD);
		assert(mtcp_read(mctx, id, &byte, 1) == -1 && errno == ECHILD);
		assert(mtcp_epoll_wait(mctx, ep, &event, 1, -1) == -1 && errno == ECHILD);
		mtcp_destroy_context(mctx);
		assert(mtcp_close(mctx, id) == -1 && errno == EINVAL);
		exit(0);
	}
	assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	puts("forked");
	fflush(stdout);
	assert(mtcp_read(mctx, id, &byte, 1) == 1 && mtcp_write(mctx, id, &byte, 1) == 1);
	mtcp_destroy_context(mctx);
	assert(pthread_join(beside, NULL) == 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};

	assert(argc == 2 && mtcp_init(NULL) == 0);
	mctx = mtcp_create_context(0);
	assert(mctx);
	listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_bind(mctx, listener, (struct sockaddr *)&any, sizeof(any)) == 0);
	assert(mtcp_listen(mctx, listener, 8) == 0);
	puts("a context is ready");
	fflush(stdout);
	if (strcmp(argv[1], "compute") == 0)
		echo_late();
	else if (strcmp(argv[1], "destroy") == 0)
		write_and_destroy();
	else if (strcmp(argv[1], "unread") == 0)
		close_unread();
	else
		fork_beside();
	mtcp_destroy();
	return 0;
}
