/* Threads that share a context: pipes between them, calls that wait beside a thread that sleeps in
 * mtcp_epoll_wait, a signal, and the end of a context that a thread sleeps on.
 * Usage: shared ADDRESS PORT, of an echo server */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <mtcp_epoll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "asleep.h"

#define ROUNDS 300

static mctx_t mctx;
static int there[2], back[2];
static struct sockaddr_in peer = {.sin_family = AF_INET};
static atomic_int handled, waiting;

/* Returns each byte of one pipe through the other, until a signal ends a wait. */
static void *answer(void *unused)
{
	struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
	int ep = mtcp_epoll_create(mctx, 8), n;
	char byte;

	event.data.sockid = there[0];
	assert(mtcp_epoll_ctl(mctx, ep, MTCP_EPOLL_CTL_ADD, there[0], &event) == 0);
	assert(mtcp_setsock_nonblock(mctx, there[0]) == 0);
	while ((n = mtcp_epoll_wait(mctx, ep, &event, 1, -1)) == 1) {
		assert(event.data.sockid == there[0] && event.events == MTCP_EPOLLIN);
		while (mtcp_read(mctx, there[0], &byte, 1) == 1)
			assert(mtcp_write(mctx, back[1], &byte, 1) == 1);
		assert(errno == EAGAIN);
	}
	assert(n == -1 && errno == EINTR);
	return unused;
}

/* Writes to the echo server and reads what comes back. */
static void *exchange(void *unused)
{
	char out[3000], in[3000];
	ssize_t n;
	int id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

	assert(mtcp_connect(mctx, id, (struct sockaddr *)&peer, sizeof(peer)) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		memset(out, round, sizeof(out));
		for (size_t written = 0; written < sizeof(out); written += n) {
			n = mtcp_write(mctx, id, out + written, sizeof(out) - written);
			assert(n > 0);
		}
		for (size_t got = 0; got < sizeof(in); got += n) {
			n = mtcp_read(mctx, id, in + got, sizeof(in) - got);
			assert(n > 0);
		}
		assert(memcmp(in, out, sizeof(in)) == 0);
	}
	assert(mtcp_close(mctx, id) == 0);
	return unused;
}

static void *wait_for_a_client(void *unused)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(81)};
	int id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

	assert(mtcp_bind(mctx, id, (struct sockaddr *)&any, sizeof(any)) == 0);
	assert(mtcp_listen(mctx, id, 4) == 0);
	assert(mtcp_write(mctx, back[1], "r", 1) == 1);
	assert(mtcp_accept(mctx, id, NULL, NULL) == -1);
	/* The other error: the context ended before the thread slept. */
	assert(errno == EINTR || errno == EINVAL);
	return unused;
}

/* Waits for what never comes, beside the other thread that waits. */
static void *wait_for_a_signal(void *unused)
{
	struct mtcp_epoll_event event;
	int ep = mtcp_epoll_create(mctx, 8);

	waiting = gettid();
	assert(mtcp_write(mctx, back[1], "w", 1) == 1);
	assert(mtcp_epoll_wait(mctx, ep, &event, 1, -1) == -1 && errno == EINTR);
	return unused;
}

static void handler(int signal)
{
	UNUSED(signal);
	handled = 1;
}

int main(int argc, char **argv)
{
	pthread_t threads[4], beside;
	char byte;

	assert(argc == 3);
	peer.sin_addr.s_addr = inet_addr(argv[1]);
	peer.sin_port = htons(atoi(argv[2]));
	assert(mtcp_init(NULL) == 0);
	assert(mtcp_register_signal(SIGUSR1, handler) != SIG_ERR);
	mctx = mtcp_create_context(0);
	assert(mctx && mtcp_pipe(mctx, there) == 0 && mtcp_pipe(mctx, back) == 0);

	assert(pthread_create(&threads[0], NULL, answer, NULL) == 0);
	for (int i = 1; i < 4; i++)
		assert(pthread_create(&threads[i], NULL, exchange, NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		assert(mtcp_write(mctx, there[1], (char[]){round}, 1) == 1);
		assert(mtcp_read(mctx, back[0], &byte, 1) == 1 && byte == (char)round);
	}
	for (int i = 1; i < 4; i++)
		assert(pthread_join(threads[i], NULL) == 0);

	/* This thread runs the handler, and both that wait are interrupted. */
	assert(pthread_create(&beside, NULL, wait_for_a_signal, NULL) == 0);
	assert(mtcp_read(mctx, back[0], &byte, 1) == 1 && byte == 'w');
	until_asleep(waiting);
	assert(pthread_kill(pthread_self(), SIGUSR1) == 0);
	assert(handled);
	assert(pthread_join(threads[0], NULL) == 0);
	assert(pthread_join(beside, NULL) == 0);

	assert(pthread_create(&threads[0], NULL, wait_for_a_client, NULL) == 0);
	assert(mtcp_read(mctx, back[0], &byte, 1) == 1 && byte == 'r');
	mtcp_destroy_context(mctx);
	assert(pthread_join(threads[0], NULL) == 0);
	mtcp_destroy();

	/* From the beginning, and the other way round at the end. */
	assert(mtcp_init(NULL) == 0);
	mctx = mtcp_create_context(0);
	assert(mctx && !mtcp_create_context(0) && errno == EINVAL);
	assert(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0) == 0);
	mtcp_destroy();
	assert(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0) == 1);
	mtcp_destroy_context(mctx);
	assert(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0) == -1 && errno == EINVAL);
	return 0;
}
