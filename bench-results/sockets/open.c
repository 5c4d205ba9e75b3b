/*
 * What it costs to accept a connection and to close it, beside so many other open sockets: as a descriptor by accept4(2), and
 * as a lightweight socket of a channel. Clients connect before, and end behind; only the server's calls are measured. The two
 * ways take turns, and the lower quartile of the turns is printed.
 *
 *	cargo build --release -p megapipe-capi
 *	cc -O2 -I crates/capi/include -o open bench-results/sockets/open.c target/release/libmegapipe_c.a -lpthread -ldl -lm
 *	for others in 0 1000 15000 100000; do ./open $others; done
 *
 * What `ulimit -Hn` leaves no room for in this process is open in others.
 */
#define _GNU_SOURCE
#include <megapipe.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 64, TURNS = 400, RESERVE = 5000 }; /* a channel leaves room for other descriptors */
enum { DESCRIPTORS, LWSOCKETS, SOCKET_AND_CLOSE, WAYS };

static const char *const names[WAYS] = { "accept4, close", "mp_accept, mp_lwsocket_close", "socket, close" };
static long took[WAYS][TURNS];
static int clients[BURST], accepted[BURST];

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
	long a = *(const long *)one, b = *(const long *)other;

	return (a > b) - (a < b);
}

static int listening(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*addr = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (bind(fd, (struct sockaddr *)addr, len) || listen(fd, 2 * BURST) || getsockname(fd, (struct sockaddr *)addr, &len))
		exit(1);
	return fd;
}

static void connect_all(const struct sockaddr_in *addr)
{
	struct linger reset = { .l_onoff = 1 };

	for (int i = 0; i < BURST; i++) {
		clients[i] = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(clients[i], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		if (connect(clients[i], (const struct sockaddr *)addr, sizeof(*addr)))
			exit(1);
	}
}

/* Has so many sockets open in processes that end with this one; each may have `most`. */
static void open_elsewhere(int others, int most)
{
	for (; others > 0; others -= most) {
		int ready[2], wanted = others < most ? others : most;
		char done = 0;

		if (pipe(ready))
			exit(1);
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (int i = 0; i < wanted; i++)
				if (socket(AF_INET, SOCK_DGRAM, 0) < 0)
					_exit(1);
			if (write(ready[1], "x", 1) == 1)
				pause();
			_exit(1);
		}
		close(ready[1]);
		if (read(ready[0], &done, 1) != 1) {
			fprintf(stderr, "another process cannot open %d sockets\n", wanted);
			exit(1);
		}
		close(ready[0]);
	}
}

int main(int count, char **words)
{
	struct rlimit limit;
	struct mp_config config = { .size = sizeof(config), .lwsockets_max = 1 << 18 };
	struct sockaddr_in addr, channel_addr;
	int others = count > 1 ? atoi(words[1]) : 0, own, most, plain, fd;
	mp_channel *channel;
	mp_handle listener;
	mp_op op;
	cpu_set_t cpus;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	most = (limit.rlim_max < 1 << 18 ? limit.rlim_max : 1 << 18) - RESERVE;
	own = others < most ? others : most;
	open_elsewhere(others - own, most);
	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	plain = listening(&addr);
	if (mp_create(&config, &channel) || (fd = listening(&channel_addr)) < 0)
		return 1;
	listener = mp_register(channel, fd, NULL, NULL, 0);
	op = mp_accept(listener, MP_UNLIMITED, MP_ACCEPT_LWSOCKET);
	if (listener < 0 || op < 0)
		return 1;
	/* As many open descriptors, and as many lightweight sockets. */
	for (int i = 0; i < own; i++) {
		int other = socket(AF_INET, SOCK_DGRAM, 0), lw = socket(AF_INET, SOCK_DGRAM, 0);

		if (other < 0 || lw < 0 || mp_fd_to_lwsocket(channel, lw) < 0) {
			fprintf(stderr, "no more than %d sockets\n", i);
			return 1;
		}
	}
	for (int turn = 0; turn < TURNS; turn++) {
		connect_all(&addr);
		long began = now();
		for (int i = 0; i < BURST; i++)
			accepted[i] = accept4(plain, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		for (int i = 0; i < BURST; i++)
			close(accepted[i]);
		took[DESCRIPTORS][turn] = now() - began;
		for (int i = 0; i < BURST; i++)
			close(clients[i]);

		connect_all(&channel_addr);
		began = now();
		for (int i = 0; i < BURST; i++) {
			struct mp_event event;

			if (mp_dispatch(channel, 5000000000, &event) != 1 || event.cmd != MP_ACCEPT || event.fd < 0)
				return 1;
			accepted[i] = event.fd;
		}
		for (int i = 0; i < BURST; i++)
			mp_lwsocket_close(channel, accepted[i]);
		mp_flush(channel);
		took[LWSOCKETS][turn] = now() - began;
		for (int i = 0; i < BURST; i++)
			close(clients[i]);

		began = now();
		for (int i = 0; i < BURST; i++)
			accepted[i] = socket(AF_INET, SOCK_STREAM, 0);
		for (int i = 0; i < BURST; i++)
			close(accepted[i]);
		took[SOCKET_AND_CLOSE][turn] = now() - began;
	}
	for (int way = 0; way < WAYS; way++) {
		qsort(took[way], TURNS, sizeof(long), compare);
		printf("%6d others, %6d here  %-28s  %6.0f ns each\n", others, own, names[way], (double)took[way][TURNS / 4] / BURST);
	}
	return 0;
}
