/*
 * Large messages from one process to another by two copies, as rings make them, by one, and by none: bounds, of which
 * docs/adr/0022 says what a hostile peer could do with each. The sender writes each message before it sends it, and the
 * receiver reads the first byte of each cache line, checks it, and so has the message in its cache, whichever way it came.
 * Neither sleeps. The ways take turns; of each the median of all batches of 2 to 8 messages is printed, but for those in
 * which something else took a CPU from one of the two, and the batch after such a one.
 *
 *	cc -O2 -o large bench-results/large/large.c
 *	./large 0 1	# the CPUs of sender and receiver
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum way { TWO_COPIES, READV, READV_AHEAD, SPLICE, SPLICE_AHEAD, WRITTEN_THERE, READ_THERE, SEALED, WAYS };

static const char *const names[WAYS] = {
	"two copies through a ring",
	"process_vm_readv, sender waits",
	"process_vm_readv, two buffers",
	"vmsplice and read, sender waits",
	"vmsplice and read, two buffers",
	"written in shared memory, copied out",
	"written and read in shared memory",
	"a sealed memfd each, mapped",
};

/* The ring and its pieces are those of crates/bench's copies.rs; a pipe has what a user without privileges may have. */
enum { RING = 256 << 10, PIECE = 16 << 10, PIPE = 1 << 20, MOST = 8 << 20, ROUNDS = 9, KEPT = 1 << 17 };
static const size_t sizes[] = { 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20 };

/* Counts of messages, of the ring bytes; each is stored by one process. */
static struct shared {
	_Alignas(256) atomic_ulong sent;
	_Alignas(256) atomic_ulong received;
	_Alignas(256) atomic_long lost; /* how often the sender lost its CPU */
	_Alignas(256) _Atomic(char *) address[2];
	atomic_int over;
	_Alignas(4096) char ring[RING];
	char slots[2][MOST];
} *shared;

static char *own[2]; /* buffers of the program itself */
static int pipes[2], sockets[2];
static unsigned long known; /* of the count of the other process */
static double took[WAYS][KEPT];
static int batches[WAYS];

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void must(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		_exit(1);
	}
}

/* How often this process lost its CPU to another. */
static long lost_cpu(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nivcsw;
}

static void once_more(void)
{
	if (atomic_load_explicit(&shared->over, memory_order_relaxed))
		_exit(0);
	__builtin_ia32_pause();
}

/* Waits for a count of the other's, unless what was read of it last is enough. */
static void wait_for(atomic_ulong *count, unsigned long least)
{
	while (known < least) {
		known = atomic_load_explicit(count, memory_order_acquire);
		if (known < least)
			once_more();
	}
}

static void seal_and_pass(const char *message, size_t size)
{
	char space[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
	struct iovec piece = { &byte, 1 };
	struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct cmsghdr *control = CMSG_FIRSTHDR(&header);
	int memory = memfd_create("message", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(!ftruncate(memory, size) && write(memory, message, size) == (ssize_t)size, "write");
	must(!fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), "F_ADD_SEALS");
	control->cmsg_level = SOL_SOCKET;
	control->cmsg_type = SCM_RIGHTS;
	control->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(control), &memory, sizeof(memory));
	while (sendmsg(sockets[0], &header, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
		once_more();
	close(memory);
}

static const char *map_next(size_t size)
{
	char space[CMSG_SPACE(sizeof(int))], byte;
	struct iovec piece = { &byte, 1 };
	struct msghdr header = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	int memory;
	char *message;

	while (recvmsg(sockets[1], &header, MSG_DONTWAIT) != 1)
		once_more();
	memcpy(&memory, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(memory));
	must(fcntl(memory, F_GET_SEALS) & F_SEAL_WRITE, "F_GET_SEALS");
	message = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, memory, 0);
	must(message != MAP_FAILED, "mmap");
	close(memory);
	return message;
}

static void send_all(enum way way, size_t size)
{
	unsigned long sent = 0;

	for (unsigned long number = 1;; number++) {
		int ahead = way == READV_AHEAD || way == SPLICE_AHEAD;
		int is_shared = way == WRITTEN_THERE || way == READ_THERE;
		char *message = is_shared ? shared->slots[number % 2] : own[ahead * number % 2];

		atomic_store_explicit(&shared->lost, lost_cpu(), memory_order_relaxed);
		if (is_shared || way == SEALED)
			wait_for(&shared->received, number < 2 ? 0 : number - 2);
		memset(message, (unsigned char)number, size);
		if (way == TWO_COPIES) {
			for (size_t done = 0; done < size; done += PIECE, sent += PIECE) {
				wait_for(&shared->received, sent + PIECE < RING ? 0 : sent + PIECE - RING);
				memcpy(shared->ring + sent % RING, message + done, PIECE);
				atomic_store_explicit(&shared->sent, sent + PIECE, memory_order_release);
			}
			continue;
		}
		if (way == SEALED) {
			seal_and_pass(message, size);
			continue;
		}
		if (way == READV || way == READV_AHEAD)
			atomic_store_explicit(&shared->address[number % 2], message, memory_order_relaxed);
		for (size_t done = 0; done < size && (way == SPLICE || way == SPLICE_AHEAD);) {
			struct iovec rest = { message + done, size - done };
			ssize_t count = vmsplice(pipes[1], &rest, 1, SPLICE_F_NONBLOCK);

			if (count > 0)
				done += count;
			else
				once_more();
		}
		atomic_store_explicit(&shared->sent, number, memory_order_release);
		if (!is_shared) /* until the buffer of the next message is free */
			wait_for(&shared->received, ahead ? number - 1 : number);
	}
}

/* Where the message is. */
static const char *receive(enum way way, size_t size, unsigned long number, pid_t sender)
{
	static unsigned long received;
	struct iovec room = { own[0], size }, there = { NULL, size };

	if (number == 1)
		received = 0;
	switch (way) {
	case TWO_COPIES:
		for (size_t done = 0; done < size; done += PIECE, received += PIECE) {
			wait_for(&shared->sent, received + PIECE);
			memcpy(own[0] + done, shared->ring + received % RING, PIECE);
			atomic_store_explicit(&shared->received, received + PIECE, memory_order_release);
		}
		return own[0];
	case SEALED:
		return map_next(size);
	case SPLICE:
	case SPLICE_AHEAD:
		for (size_t done = 0; done < size;) {
			ssize_t count = read(pipes[0], own[0] + done, size - done);

			if (count > 0)
				done += count;
			else
				once_more();
		}
		return own[0];
	case READV:
	case READV_AHEAD:
		wait_for(&shared->sent, number);
		there.iov_base = atomic_load_explicit(&shared->address[number % 2], memory_order_relaxed);
		must(process_vm_readv(sender, &room, 1, &there, 1, 0) == (ssize_t)size, "process_vm_readv");
		return own[0];
	default:
		wait_for(&shared->sent, number);
		if (way == READ_THERE)
			return shared->slots[number % 2];
		return memcpy(own[0], shared->slots[number % 2], size);
	}
}

static void check(const char *message, size_t size, unsigned char byte)
{
	unsigned long sum = 0;

	for (size_t at = 0; at < size; at += 64)
		sum += (unsigned char)message[at];
	must(sum == size / 64 * byte, "a message is another");
}

static void measure(enum way way, size_t size, int cpu, long length)
{
	unsigned long number = 0;
	int batch = size < 1 << 20 ? 8 : 2, was_clean = 0;
	long lost = 0;
	cpu_set_t cpus;
	pid_t sender;
	int status;

	memset(shared, 0, offsetof(struct shared, ring));
	known = 0;
	must(!pipe2(pipes, O_NONBLOCK) && fcntl(pipes[1], F_SETPIPE_SZ, PIPE) >= PIPE, "pipe");
	must(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), "socketpair");
	sender = fork();
	if (!sender) {
		CPU_ZERO(&cpus);
		CPU_SET(cpu, &cpus);
		must(!sched_setaffinity(0, sizeof(cpus), &cpus), "sched_setaffinity");
		send_all(way, size);
	}
	for (long began = now(), last = began; last - began < length;) {
		for (int i = 0; i < batch; i++) {
			const char *message = receive(way, size, ++number, sender);

			check(message, size, (unsigned char)number);
			if (way == SEALED)
				munmap((void *)message, size);
			if (way != TWO_COPIES)
				atomic_store_explicit(&shared->received, number, memory_order_release);
		}
		long end = now(), lost_now = lost_cpu() + atomic_load_explicit(&shared->lost, memory_order_relaxed);
		int is_clean = lost_now == lost;

		if (is_clean && was_clean && last - began > length / 4 && batches[way] < KEPT)
			took[way][batches[way]++] = (double)(end - last) / batch;
		lost = lost_now;
		was_clean = is_clean;
		last = now();
	}
	atomic_store(&shared->over, 1);
	must(waitpid(sender, &status, 0) == sender && !status, "the sender");
	for (int i = 0; i < 2; i++) {
		close(pipes[i]);
		close(sockets[i]);
	}
}

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

int main(int count, char **words)
{
	int memory = memfd_create("large", 0);
	cpu_set_t cpus;

	setlinebuf(stdout);
	if (count != 3) {
		fprintf(stderr, "usage: large CPU CPU\n");
		return 2;
	}
	must(!ftruncate(memory, sizeof(*shared)), "ftruncate");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory, 0);
	must(shared != MAP_FAILED, "mmap");
	for (int i = 0; i < 2; i++)
		memset(own[i] = aligned_alloc(4096, MOST), 1, MOST);
	CPU_ZERO(&cpus);
	CPU_SET(atoi(words[2]), &cpus);
	must(!sched_setaffinity(0, sizeof(cpus), &cpus), "sched_setaffinity");
	printf("%-8s  %-37s  %9s  %6s  %13s  %s\n", "bytes", "way", "us each", "GB/s", "of two copies", "batches");
	for (size_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++) {
		double two = 0;

		memset(batches, 0, sizeof(batches));
		for (int turn = 0; turn < ROUNDS * WAYS; turn++)
			measure((turn + turn / WAYS) % WAYS, sizes[at], atoi(words[1]), 100000000);
		for (int way = 0; way < WAYS; way++) {
			double each;

			if (!batches[way]) {
				printf("%-8zu  %-37s  always disturbed\n", sizes[at], names[way]);
				continue;
			}
			qsort(took[way], batches[way], sizeof(double), compare);
			each = took[way][batches[way] / 2];
			two = way ? two : each;
			printf("%-8zu  %-37s  %9.1f  %6.1f  %13.2f  %d\n", sizes[at], names[way], each / 1e3, sizes[at] / each,
			       two / each, batches[way]);
		}
	}
	return 0;
}
