/* Loads server.c over the kernel's TCP. Usage: load ADDRESS PID CPU WHAT ...; CPU -1: any. Prints one line of
 * numbers:
 * `echo CONNECTIONS SECONDS`: 64 B back and forth on each: a second; ns of the server's CPU, of this one's, for
 * each; us of p50, p99;
 * `fair FLOWS`: 10 MB on each at once: seconds; Jain's index of the flows' rates over their whole lives, and
 * until the first one ended; the server's CPU ns a kB;
 * `wait`: while the server computes for two seconds: ms of a connect, and until 64 B are acknowledged. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FLOWS 4096
#define SIZE 64
#define BULK 10000000
#define SAMPLES (1 << 22)

static struct sockaddr_in to = {.sin_family = AF_INET};
static clockid_t server;
static double begun[FLOWS], took[FLOWS], early[FLOWS];
static long got[FLOWS];
static int fds[FLOWS];
static float *samples;

static double read_clock(clockid_t id)
{
	struct timespec time;

	assert(clock_gettime(id, &time) == 0);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

static double now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

static int open_one(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert(fd >= 0 && fd < FLOWS && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	return fd;
}

/* Opens so many, and puts them into an epoll set. */
static int open_all(int count)
{
	int ep = epoll_create(1);

	for (int i = 0; i < count; i++) {
		fds[i] = open_one();
		epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &(struct epoll_event){.events = EPOLLIN, .data.fd = fds[i]});
	}
	return ep;
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void send_one(int fd)
{
	static const char bytes[SIZE] = "e";

	begun[fd] = now();
	assert(write(fd, bytes, SIZE) == SIZE);
}

static void echo(int connections, double seconds)
{
	struct epoll_event events[256];
	double end, from = 0, server_from = 0, own_from = 0, elapsed;
	int ep = open_all(connections), warm = 1, n;
	long count = 0, kept;
	char bytes[SIZE];

	for (int i = 0; i < connections; i++)
		send_one(fds[i]);
	for (end = now() + 0.3;;) {
		double at = now();

		if (at >= end) {
			if (!warm)
				break;
			warm = 0;
			count = 0;
			from = at;
			end = at + seconds;
			server_from = read_clock(server);
			own_from = read_clock(CLOCK_PROCESS_CPUTIME_ID);
		}
		n = epoll_wait(ep, events, 256, 100);
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd;
			ssize_t len = read(fd, bytes, SIZE - got[fd]);

			assert(len > 0);
			got[fd] += len;
			if (got[fd] == SIZE) {
				samples[count++ % SAMPLES] = (now() - begun[fd]) * 1e6;
				got[fd] = 0;
				send_one(fd);
			}
		}
	}
	elapsed = now() - from;
	kept = count < SAMPLES ? count : SAMPLES;
	qsort(samples, kept, sizeof(*samples), compare);
	printf("%.0f %.0f %.0f %.1f %.1f\n", count / elapsed, (read_clock(server) - server_from) / count * 1e9,
	       (read_clock(CLOCK_PROCESS_CPUTIME_ID) - own_from) / count * 1e9, samples[kept / 2],
	       samples[kept * 99 / 100]);
}

static double jain(const double *rates, int count)
{
	double sum = 0, squares = 0;

	for (int i = 0; i < count; i++) {
		sum += rates[i];
		squares += rates[i] * rates[i];
	}
	return sum * sum / (count * squares);
}

static void fair(int flows)
{
	static char bytes[1 << 18];
	struct epoll_event events[64];
	double server_from = read_clock(server), from;
	int ep = open_all(flows), open = flows;

	from = now();
	for (int i = 0; i < flows; i++)
		assert(write(fds[i], "b", 1) == 1);
	while (open > 0) {
		int n = epoll_wait(ep, events, 64, -1);

		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd;
			ssize_t len = read(fd, bytes, sizeof(bytes));

			assert(len > 0);
			got[fd] += len;
			if (got[fd] < BULK)
				continue;
			if (open-- == flows)
				for (int other = 0; other < flows; other++)
					early[other] = got[fds[other]];
			took[flows - open - 1] = BULK / (now() - from);
			epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL);
		}
	}
	printf("%.3f %.4f %.4f %.0f\n", now() - from, jain(took, flows), jain(early, flows),
	       (read_clock(server) - server_from) * 1e9 / (flows * (double)BULK / 1000));
}

static void wait_for(void)
{
	char bytes[SIZE] = "c";
	int computing = open_one(), other, left;
	double from, connected;

	assert(write(computing, bytes, SIZE) == SIZE);
	usleep(200000);
	from = now();
	other = open_one();
	connected = now();
	*bytes = 'e';
	assert(write(other, bytes, SIZE) == SIZE);
	do {
		usleep(20);
		assert(ioctl(other, TIOCOUTQ, &left) == 0);
	} while (left > 0);
	printf("%.2f %.2f\n", (connected - from) * 1e3, (now() - connected) * 1e3);
	assert(read(computing, bytes, SIZE) == SIZE && read(other, bytes, SIZE) == SIZE);
}

int main(int argc, char **argv)
{
	cpu_set_t cpus;

	assert(argc > 4);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){FLOWS, FLOWS});
	to.sin_port = htons(7);
	to.sin_addr.s_addr = inet_addr(argv[1]);
	assert(clock_getcpuclockid(atoi(argv[2]), &server) == 0);
	if (atoi(argv[3]) >= 0) {
		CPU_ZERO(&cpus);
		CPU_SET(atoi(argv[3]), &cpus);
		sched_setaffinity(0, sizeof(cpus), &cpus);
	}
	samples = malloc(SAMPLES * sizeof(*samples));
	if (strcmp(argv[4], "echo") == 0)
		echo(atoi(argv[5]), atof(argv[6]));
	else if (strcmp(argv[4], "fair") == 0)
		fair(atoi(argv[5]));
	else
		wait_for();
	return 0;
}
