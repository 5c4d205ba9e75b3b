/*
 * What the test programs share. A program ends with 0 (passed), 77 (skipped, with a line
 * that says why) or anything else (failed).
 */
#ifndef TEST_H
#define TEST_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

#define CHECK(what)                                                              \
	do {                                                                     \
		if (!(what)) {                                                   \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__,      \
				__LINE__, #what, errno);                         \
			exit(1);                                                 \
		}                                                                \
	} while (0)

#define EQUAL(left, right)                                                       \
	do {                                                                     \
		long long left_ = (long long)(left), right_ = (long long)(right); \
		if (left_ != right_) {                                           \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n",    \
				__FILE__, __LINE__, #left, left_, right_, #right); \
			exit(1);                                                 \
		}                                                                \
	} while (0)

#define SKIP(why)                                                                \
	do {                                                                     \
		printf("SKIPPED: %s\n", why);                                    \
		exit(77);                                                        \
	} while (0)

/* What a first attach to a TUN device has returned: 0, or why the test cannot run. */
static inline void attached(int result)
{
	if (result == -ENODEV)
		SKIP("no /dev/net/tun");
	if (result == -EACCES)
		SKIP("no permission on /dev/net/tun");
	EQUAL(result, 0);
}

/* Handles that no call ever returned. */
static const mp_handle strange_handles[] = {0, -1, 1, 42, INT64_MIN, INT64_MAX, INT64_C(1) << 53};
#define STRANGE (sizeof(strange_handles) / sizeof(strange_handles[0]))

/* Checks that a call on a handle refuses all that are not one. */
#define REFUSES_STRANGE(call)                                                    \
	for (size_t i_ = 0; i_ < STRANGE; i_++) {                                \
		mp_handle handle = strange_handles[i_];                          \
		EQUAL(call, -EBADF);                                             \
	}

static inline mp_channel *make_channel(const struct mp_config *config)
{
	mp_channel *channel = NULL;
	int status = mp_create(config, &channel);

	if (status == -EOPNOTSUPP)
		SKIP("the kernel does not allow this engine");
	EQUAL(status, 0);
	CHECK(channel != NULL);
	return channel;
}

/* The next completion; there must be one. */
#define next_event(channel) next_event_at(__LINE__, channel)

static inline struct mp_event next_event_at(int line, mp_channel *channel)
{
	struct mp_event event;
	int status;

	do
		status = mp_dispatch(channel, 20 * SECOND, &event);
	while (status == -EINTR);
	if (status != 1) {
		fprintf(stderr, "line %d: mp_dispatch says %d\n", line, status);
		exit(1);
	}
	return event;
}

/* Checks that nothing more comes of what the kernel has done by now. */
#define no_event(channel) no_event_at(__LINE__, channel)

static inline void no_event_at(int line, mp_channel *channel)
{
	struct mp_event event;

	for (int i = 0; i < 3; i++) {
		int status = mp_dispatch(channel, 0, &event);

		if (status != 0) {
			fprintf(stderr, "line %d: mp_dispatch says %d, cmd %u, size %lld\n", line,
				status, event.cmd, (long long)event.size);
			exit(1);
		}
	}
}

static inline struct sockaddr_in loopback(void)
{
	struct sockaddr_in addr;

	memset(&addr, 0, sizeof(addr));
	addr.sin_family = AF_INET;
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return addr;
}

/* A socket that is bound to a free port of the loopback address. */
static inline int bound_socket(int type, int reuseport, struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (reuseport)
		EQUAL(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &reuseport, sizeof(reuseport)), 0);
	*addr = loopback();
	EQUAL(bind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	EQUAL(getsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

static inline int listening_socket(struct sockaddr_in *addr)
{
	int fd = bound_socket(SOCK_STREAM, 0, addr);

	EQUAL(listen(fd, 128), 0);
	return fd;
}

static inline int connect_to(const struct sockaddr_in *addr)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	EQUAL(connect(fd, (const struct sockaddr *)addr, sizeof(*addr)), 0);
	return fd;
}

/* Two ends of a TCP connection. */
static inline void tcp_pair(int ends[2])
{
	struct sockaddr_in addr;
	int listener = listening_socket(&addr);

	ends[0] = connect_to(&addr);
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(ends[1] >= 0);
	close(listener);
}

/* A handle of one end of a TCP connection, and the other end, which waits when read. */
static inline mp_handle tcp_handle(mp_channel *channel, void *cookie, int *peer)
{
	mp_handle handle;
	int ends[2];

	tcp_pair(ends);
	handle = mp_register(channel, ends[0], cookie, NULL, 0);
	CHECK(handle > 0);
	*peer = ends[1];
	return handle;
}

/* The same for a lightweight socket, made of one end. */
static inline mp_handle lwsocket_handle(mp_channel *channel, int end)
{
	int lwsocket = mp_fd_to_lwsocket(channel, end);
	mp_handle handle;

	CHECK(lwsocket >= 0);
	handle = mp_register(channel, lwsocket, NULL, NULL, 0);
	CHECK(handle > 0);
	return handle;
}

/* Checks that a call tells of a lightweight socket what the system call tells of its descriptor. */
#define CHECKS_ADDRESS(call, system_call)                                        \
	do {                                                                     \
		mp_channel *channel = make_channel(NULL);                        \
		struct sockaddr_in expected, addr;                               \
		struct sockaddr *out = (struct sockaddr *)&addr;                 \
		socklen_t len = sizeof(expected);                                \
		mp_handle handle;                                                \
		int ends[2];                                                     \
                                                                                 \
		tcp_pair(ends);                                                  \
		EQUAL(system_call(ends[0], (struct sockaddr *)&expected, &len), 0); \
		handle = lwsocket_handle(channel, ends[0]);                      \
		EQUAL(call(handle, NULL, &len), -EINVAL);                        \
		EQUAL(call(handle, out, NULL), -EINVAL);                         \
		REFUSES_STRANGE(call(handle, out, &len));                        \
		len = sizeof(addr);                                              \
		EQUAL(call(handle, out, &len), 0);                               \
		EQUAL(len, sizeof(expected));                                    \
		EQUAL(addr.sin_port, expected.sin_port);                         \
		EQUAL(addr.sin_addr.s_addr, expected.sin_addr.s_addr);           \
		EQUAL(mp_destroy(channel), 0);                                   \
	} while (0)

/* Reads exactly so much from a descriptor that waits. */
static inline void read_all(int fd, void *buf, size_t size)
{
	char *at = buf;

	while (size > 0) {
		ssize_t count = read(fd, at, size);

		CHECK(count > 0);
		at += count;
		size -= (size_t)count;
	}
}

/* A disk file that is gone when it is closed. */
static inline int disk_file(void)
{
	FILE *file = tmpfile();
	int fd;

	CHECK(file != NULL);
	fd = dup(fileno(file));
	CHECK(fd >= 0);
	fclose(file);
	return fd;
}

#endif
