/*
 * What a message costs by each call, for the tables of calls.txt. One thread on one CPU sends a message on each of so many
 * of 512 sockets, which is not measured, and then receives them, which is: epoll_wait included. The ways take turns, so that
 * what else runs on the machine meets all alike, in an order that is drawn anew for each round: the kernel frees buffers 32 at a
 * time, which would else always be at the cost of the same ways. The lower quartile of the turns is printed: what they take
 * undisturbed.
 *
 *	cargo build --release -p megapipe-capi
 *	cc -O2 -I crates/capi/include -o calls bench-results/mmsg/calls.c target/release/libmegapipe_c.a -lpthread -ldl -lm
 *	for ready in 1 2 4 8 16 30 128; do ./calls $ready udp; ./calls $ready tcp; done; ./calls 30 lowat
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <megapipe_mmsg.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SOCKETS = 512, SPARE = 70, PLACES = SOCKETS + SPARE, ROOM = 2048, TURNS = 1500, BATCH = 16, SIZE = 64 };
enum { RECVMSG, RECVMMSG, RECV, TALK, TRUNC, LIMIT, AIO, WAYS };

static const char *const names[WAYS] = { "recvmsg", "recvmmsg", "recv", "recvmmmsg, flags 0", "recvmmmsg, MSG_TRUNC",
					 "the same, limit of 1", "io_submit" };
static int order[WAYS - 1] = { RECVMSG, RECVMMSG, RECV, TALK, TRUNC, LIMIT };
static int sockets[SOCKETS], senders[SOCKETS], set, at, ready, is_tcp, used;
static struct epoll_event events[SOCKETS];
static struct mmep eps[SOCKETS];
static struct mmsghdr msgs[PLACES];
static struct iovec pieces[PLACES];
static char rooms[PLACES][ROOM + 64];
static long took[WAYS][TURNS], calls[WAYS];
static aio_context_t context;
static struct iocb requests[2 * SOCKETS], *pointers[2 * SOCKETS];
static struct io_event done[2 * SOCKETS];

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void burst(void)
{
	static const char message[SIZE] = { 7 };

	for (int i = 0; i < ready; i++, at = (at + 37) % SOCKETS)
		if (send(senders[at], message, SIZE, 0) != SIZE)
			abort();
}

static void request(int n, int opcode, int socket)
{
	requests[n] = (struct iocb){ .aio_data = socket, .aio_lio_opcode = opcode, .aio_fildes = sockets[socket],
				     .aio_buf = POLLIN };
	if (opcode == IOCB_CMD_PREAD) {
		requests[n].aio_data = socket + SOCKETS;
		requests[n].aio_buf = (unsigned long)rooms[socket];
		requests[n].aio_nbytes = ROOM;
	}
	pointers[n] = &requests[n];
}

/* Sockets wait by polls; one call reads from all that are ready and lets them wait again. */
static int receive_aio(void)
{
	int got = 0;

	while (got < ready) {
		int count = syscall(SYS_io_getevents, context, 1, 2 * SOCKETS, done, NULL), n = 0;

		for (int i = 0; i < count; i++) {
			if (done[i].data >= SOCKETS) {
				got += done[i].res > 0;
				continue;
			}
			request(n++, IOCB_CMD_PREAD, done[i].data);
			request(n++, IOCB_CMD_POLL, done[i].data);
		}
		calls[AIO]++;
		if (n && syscall(SYS_io_submit, context, n, pointers) != n)
			abort();
		calls[AIO] += n > 0;
	}
	return got;
}

static int receive(int way, int count)
{
	int got = 0, flags = way == TRUNC || way == LIMIT ? MSG_TRUNC : 0;

	if (is_tcp)
		flags = 0; /* of a stream MSG_TRUNC discards */
	if (way == TALK || way == TRUNC || way == LIMIT) {
		for (int i = 0; i < count; i++) {
			eps[i].sockfd = events[i].data.fd;
			if (way == LIMIT)
				eps[i].num = 1;
		}
		calls[way]++;
		return recvmmmsg(eps, count, msgs, ready + SPARE, flags | (way == LIMIT ? MP_LIMITED : 0));
	}
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd;

		calls[way]++;
		if (way == RECVMSG)
			got += recvmsg(fd, &msgs[0].msg_hdr, MSG_DONTWAIT) > 0;
		else if (way == RECV)
			got += recv(fd, rooms[i], ROOM, MSG_DONTWAIT) > 0;
		else
			got += recvmmsg(fd, msgs, 8, MSG_DONTWAIT, NULL);
	}
	return got;
}

static int compare(const void *one, const void *other)
{
	long a = *(const long *)one, b = *(const long *)other;

	return (a > b) - (a < b);
}

static double quartile(long *values, int of)
{
	qsort(values, used, sizeof(*values), compare);
	return (double)values[used / 4] / of;
}

/* A message on each connection in turn, 16 times around; with a mark the set reports a connection once for all 16. */
static void low_water(void)
{
	static long with[2][TURNS], reports[2];
	struct epoll_event timer = { .events = EPOLLIN, .data.fd = -1 };
	int rounds = used < 200 ? used : 200;
	mp_lowat *lowat;

	if (mp_lowat_create(0, &lowat))
		abort();
	timer.data.fd = mp_lowat_fd(lowat);
	for (int mark = 0; mark < 2; mark++) {
		if (mark) {
			epoll_ctl(set, EPOLL_CTL_ADD, timer.data.fd, &timer);
			for (int i = 0; i < SOCKETS; i++)
				if (mp_lowat_set(lowat, sockets[i], BATCH * SIZE, 100000000))
					abort();
		}
		for (int turn = 0; turn < rounds; turn++) {
			long spent = 0;
			int bytes = 0, first = at;

			for (int i = 0; i < BATCH || bytes < BATCH * SIZE * ready; i++) {
				at = first;
				if (i < BATCH)
					burst();
				long began = now();
				int count = epoll_wait(set, events, SOCKETS, i < BATCH ? 0 : 1);

				for (int j = 0; j < count; j++) {
					if (events[j].data.fd == timer.data.fd) {
						mp_lowat_expire(lowat);
						continue;
					}
					bytes += recv(events[j].data.fd, rooms[0], ROOM, MSG_DONTWAIT);
					reports[mark]++;
					if (mark)
						mp_lowat_rearm(lowat, events[j].data.fd);
				}
				spent += now() - began;
			}
			with[mark][turn] = spent;
		}
	}
	used = rounds;
	double plain = quartile(with[0], BATCH * ready), marked = quartile(with[1], BATCH * ready);
	printf("%-21s %5d tcp  %7.0f ns/msg  ratio %.3f  %.4f reports/msg\n", "recv, no mark", ready, plain, 1.0,
	       (double)reports[0] / (rounds * BATCH * ready));
	printf("%-21s %5d tcp  %7.0f ns/msg  ratio %.3f  %.4f reports/msg\n", "mark of 16, 100 ms", ready, marked,
	       marked / plain, (double)reports[1] / (rounds * BATCH * ready));
}

int main(int count, char **words)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = -1, one = 1;
	cpu_set_t cpus;

	if (count < 3)
		return 2;
	ready = atoi(words[1]);
	is_tcp = strcmp(words[2], "udp");
	used = TURNS * 8 / (ready > 8 ? ready : 8) + 100;
	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	set = epoll_create1(0);
	if (is_tcp) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		bind(listener, (struct sockaddr *)&addr, len);
		listen(listener, SOCKETS);
		getsockname(listener, (struct sockaddr *)&addr, &len);
	}
	for (int i = 0; i < SOCKETS; i++) {
		struct epoll_event event = { .events = EPOLLIN };

		senders[i] = socket(AF_INET, is_tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
		if (is_tcp) {
			connect(senders[i], (struct sockaddr *)&addr, len);
			setsockopt(senders[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
			sockets[i] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
		} else {
			sockets[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
			addr.sin_port = 0;
			bind(sockets[i], (struct sockaddr *)&addr, len);
			getsockname(sockets[i], (struct sockaddr *)&addr, &len);
			connect(senders[i], (struct sockaddr *)&addr, len);
		}
		event.data.fd = sockets[i];
		epoll_ctl(set, EPOLL_CTL_ADD, sockets[i], &event);
	}
	for (int i = 0; i < PLACES; i++) {
		pieces[i] = (struct iovec){ rooms[i], ROOM };
		msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &pieces[i], .msg_iovlen = 1 };
	}
	if (!strcmp(words[2], "lowat")) {
		low_water();
		return 0;
	}
	/* The last way takes its sockets out of the set, so it has turns of its own. */
	for (int turn = 0; turn < used * (WAYS - 1); turn++) {
		int got = 0, at_round = turn % (WAYS - 1), other = at_round + rand() % (WAYS - 1 - at_round), way = order[other];

		order[other] = order[at_round];
		order[at_round] = way;
		burst();
		long began = now();
		while (got < ready)
			got += receive(way, epoll_wait(set, events, SOCKETS, 1000));
		took[way][turn / (WAYS - 1)] = now() - began;
	}
	for (int i = 0; i < SOCKETS; i++) {
		epoll_ctl(set, EPOLL_CTL_DEL, sockets[i], NULL);
		request(i, IOCB_CMD_POLL, i);
	}
	if (syscall(SYS_io_setup, 4 * SOCKETS, &context) || syscall(SYS_io_submit, context, SOCKETS, pointers) != SOCKETS)
		return 1;
	for (int turn = 0; turn < used; turn++) {
		burst();
		long began = now();
		receive_aio();
		took[AIO][turn] = now() - began;
	}
	double base = quartile(took[RECVMSG], ready);
	for (int way = 0; way < WAYS; way++) {
		double cost = quartile(took[way], ready);

		printf("%-21s %5d %s  %7.0f ns/msg  ratio %.3f  %.3f calls/msg\n", names[way], ready,
		       is_tcp ? "tcp" : "udp", cost, cost / base, (double)calls[way] / (used * ready));
	}
	return 0;
}
