/* Every call, between two contexts in one thread: the packets and the clock are this program's. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <mtcp_device.h>
#include <mtcp_epoll.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define PACKETS 256

struct queue {
	unsigned head, tail;
	size_t lengths[PACKETS];
	char packets[PACKETS][1500];
};

/* What a device receives, and where it sends. */
struct wire {
	struct queue *in, *out;
};

static struct queue there, back;
static struct wire wires[2] = {{&there, &back}, {&back, &there}};
static uint64_t clock_now = 1000000;
static mctx_t server, client;
static int server_ep, client_ep, listener;

static ssize_t receive(void *user, void *packet, size_t size)
{
	struct queue *queue = ((struct wire *)user)->in;
	size_t length;

	if (queue->head == queue->tail)
		return 0;
	length = queue->lengths[queue->head % PACKETS];
	assert(length <= size);
	memcpy(packet, queue->packets[queue->head++ % PACKETS], length);
	return length;
}

static int send_packet(void *user, const void *packet, size_t size)
{
	struct queue *queue = ((struct wire *)user)->out;

	if (queue->tail - queue->head == PACKETS)
		return -1;
	assert(size <= 1500);
	queue->lengths[queue->tail % PACKETS] = size;
	memcpy(queue->packets[queue->tail++ % PACKETS], packet, size);
	return 0;
}

static uint64_t now(void *user)
{
	UNUSED(user);
	return clock_now;
}

static mctx_t context(struct wire *wire, const char *address)
{
	struct mtcp_device device = {.size = sizeof(device), .user = wire, .mtu = 1500,
		.receive = receive, .send = send_packet, .now = now};

	return mtcp_create_context_on(&device, address);
}

/* Moves packets both ways for so many milliseconds of this program's clock. */
static void pass(int milliseconds)
{
	static int idle[2] = {-1, -1};
	struct mtcp_epoll_event event;

	for (int side = 0; side < 2; side++)
		if (idle[side] < 0)
			idle[side] = mtcp_epoll_create(side ? client : server, 1);
	for (int i = 0; i < milliseconds * 2; i++) {
		assert(mtcp_epoll_wait(client, idle[1], &event, 1, -1) == 0);
		assert(mtcp_epoll_wait(server, idle[0], &event, 1, -1) == 0);
		clock_now += 500;
	}
}

static void watch(mctx_t mctx, int ep, int operation, int id, uint32_t events)
{
	struct mtcp_epoll_event event = {.events = events, .data.u64 = 0x100000000 | id};

	assert(mtcp_epoll_ctl(mctx, ep, operation, id, &event) == 0);
}

/* The events of this socket, of which alone there may be any. */
static uint32_t ready(mctx_t mctx, int ep, int id)
{
	struct mtcp_epoll_event events[4];
	int n = mtcp_epoll_wait(mctx, ep, events, 4, 0);

	assert(n == 0 || (n == 1 && events[0].data.u64 == (0x100000000 | (uint64_t)id)));
	return n ? events[0].events : 0;
}

/* A macro, for the line in the message. */
#define refused(call, error) assert((call) == -1 && errno == (error))

/* A connection, both sockets non-blocking. */
static void connected(int pair[2])
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(80)}, from, peer;
	socklen_t len = 0; /* mTCP does not look at it. */

	to.sin_addr.s_addr = inet_addr("10.0.0.1");
	pair[0] = mtcp_socket(client, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_setsock_nonblock(client, pair[0]) == 0);
	refused(mtcp_connect(client, pair[0], (struct sockaddr *)&to, sizeof(to)), EINPROGRESS);
	refused(mtcp_connect(client, pair[0], (struct sockaddr *)&to, sizeof(to)), EALREADY);
	refused(mtcp_write(client, pair[0], "x", 1), ENOTCONN);
	refused(mtcp_read(client, pair[0], (char *)&peer, 1), ENOTCONN);
	refused(mtcp_accept(server, listener, NULL, NULL), EAGAIN);
	watch(client, client_ep, MTCP_EPOLL_CTL_ADD, pair[0], MTCP_EPOLLOUT);
	assert(ready(client, client_ep, pair[0]) == 0);
	pass(1);
	assert(ready(client, client_ep, pair[0]) == MTCP_EPOLLOUT);
	refused(mtcp_connect(client, pair[0], (struct sockaddr *)&to, sizeof(to)), EISCONN);
	assert(ready(server, server_ep, listener) == MTCP_EPOLLIN);
	pair[1] = mtcp_accept(server, listener, (struct sockaddr *)&from, &len);
	assert(pair[1] >= 0 && len == sizeof(from));
	assert(mtcp_setsock_nonblock(server, pair[1]) == 0);
	assert(mtcp_getsockname(client, pair[0], (struct sockaddr *)&peer, &len) == 0);
	assert(memcmp(&peer, &from, sizeof(peer)) == 0);
	assert(mtcp_getpeername(client, pair[0], (struct sockaddr *)&peer, &len) == 0);
	assert(peer.sin_port == htons(80) && peer.sin_addr.s_addr == to.sin_addr.s_addr);
}

/* Each write goes out by itself while the one before is not acknowledged, on both sides. */
static void no_delay(void)
{
	struct mtcp_epoll_event event;
	unsigned before;
	int pair[2];

	connected(pair);
	for (int side = 0; side < 2; side++) {
		mctx_t mctx = side ? server : client;
		struct queue *sent = wires[!side].out;

		pass(100);
		before = sent->tail;
		for (int i = 0; i < 3; i++) {
			assert(mtcp_write(mctx, pair[side], "x", 1) == 1);
			assert(mtcp_epoll_wait(mctx, side ? server_ep : client_ep, &event, 1, 0) <= 1);
		}
		assert(sent->tail - before == 3);
	}
	assert(mtcp_abort(client, pair[0]) == 0);
	pass(1);
	assert(mtcp_close(server, pair[1]) == 0);
}

static void transfers(void)
{
	struct iovec parts[2];
	char buffer[64], rest[64];
	int pair[2], unread;

	connected(pair);
	refused(mtcp_recv(server, pair[1], buffer, sizeof(buffer), 0), EAGAIN);
	refused(mtcp_recv(server, pair[1], buffer, 0, 0), EAGAIN);
	refused(mtcp_write(server, pair[1], buffer, 0), EAGAIN);
	parts[0] = (struct iovec){"sixteen ", 8};
	parts[1] = (struct iovec){"bytes so", 8};
	assert(mtcp_writev(client, pair[0], parts, 2) == 16);
	pass(1);
	assert(mtcp_socket_ioctl(server, pair[1], FIONREAD, &unread) == 0 && unread == 16);
	assert(mtcp_recv(server, pair[1], buffer, 4, MSG_PEEK) == 4);
	refused(mtcp_recv(server, pair[1], buffer, 4, MSG_OOB), EINVAL);
	parts[0] = (struct iovec){buffer, 10};
	parts[1] = (struct iovec){rest, sizeof(rest)};
	assert(mtcp_readv(server, pair[1], parts, 2) == 16);
	assert(memcmp(buffer, "sixteen by", 10) == 0 && memcmp(rest, "tes so", 6) == 0);
	refused(mtcp_writev(client, pair[0], NULL, 1), EFAULT);
	refused(mtcp_readv(client, pair[0], parts, -1), EINVAL);
	assert(mtcp_close(client, pair[0]) == 0);
	pass(1);
	assert(mtcp_read(server, pair[1], buffer, sizeof(buffer)) == 0);
	assert(mtcp_close(server, pair[1]) == 0);
	refused(mtcp_close(server, pair[1]), EBADF);
	pass(100);
}

/* By level, by edge, once; two sets with one socket. */
static void triggers(void)
{
	static char full[1 << 20];
	int pair[2], level, edge, once;
	char byte;
	ssize_t n;

	connected(pair);
	level = mtcp_epoll_create(server, 8);
	edge = mtcp_epoll_create1(server, O_CLOEXEC);
	once = mtcp_epoll_create1(server, 0);
	watch(server, level, MTCP_EPOLL_CTL_ADD, pair[1], MTCP_EPOLLIN);
	watch(server, edge, MTCP_EPOLL_CTL_ADD, pair[1], MTCP_EPOLLIN | MTCP_EPOLLRDHUP | MTCP_EPOLLET);
	watch(server, once, MTCP_EPOLL_CTL_ADD, pair[1], MTCP_EPOLLIN | MTCP_EPOLLONESHOT);
	assert(mtcp_write(client, pair[0], "ab", 2) == 2);
	pass(1);
	for (int i = 0; i < 3; i++) {
		assert(ready(server, level, pair[1]) == MTCP_EPOLLIN);
		assert(ready(server, edge, pair[1]) == (i ? 0 : MTCP_EPOLLIN));
		assert(ready(server, once, pair[1]) == (i ? 0 : MTCP_EPOLLIN));
	}
	assert(mtcp_write(client, pair[0], "c", 1) == 1);
	pass(1);
	assert(ready(server, edge, pair[1]) == MTCP_EPOLLIN);
	assert(ready(server, once, pair[1]) == 0);
	watch(server, once, MTCP_EPOLL_CTL_MOD, pair[1], MTCP_EPOLLIN | MTCP_EPOLLONESHOT);
	assert(ready(server, once, pair[1]) == MTCP_EPOLLIN);
	while (mtcp_read(server, pair[1], &byte, 1) == 1)
		;
	assert(errno == EAGAIN);
	assert(ready(server, level, pair[1]) == 0);

	/* Room to write is an edge once it was used up. */
	watch(client, client_ep, MTCP_EPOLL_CTL_MOD, pair[0], MTCP_EPOLLOUT | MTCP_EPOLLET);
	assert(ready(client, client_ep, pair[0]) == MTCP_EPOLLOUT);
	while ((n = mtcp_write(client, pair[0], full, sizeof(full))) > 0)
		;
	refused(n, EAGAIN);
	assert(ready(client, client_ep, pair[0]) == 0);
	for (int i = 0; i < 100; i++) {
		pass(2);
		while (mtcp_read(server, pair[1], full, sizeof(full)) > 0)
			;
	}
	assert(ready(client, client_ep, pair[0]) == MTCP_EPOLLOUT);

	/* The end of the stream, and a set that is closed. */
	assert(mtcp_epoll_ctl(client, client_ep, MTCP_EPOLL_CTL_DEL, pair[0], NULL) == 0);
	refused(mtcp_epoll_ctl(client, client_ep, MTCP_EPOLL_CTL_DEL, pair[0], NULL), ENOENT);
	ready(server, edge, pair[1]);
	assert(mtcp_close(client, pair[0]) == 0);
	pass(1);
	assert(ready(server, edge, pair[1]) == MTCP_EPOLLIN);
	assert(ready(server, edge, pair[1]) == MTCP_EPOLLRDHUP);
	assert(ready(server, edge, pair[1]) == 0);
	assert(ready(server, level, pair[1]) == MTCP_EPOLLIN);
	assert(mtcp_close(server, level) == 0);
	refused(mtcp_epoll_wait(server, level, NULL, 1, 0), EBADF);
	assert(mtcp_close(server, pair[1]) == 0);
	assert(mtcp_close(server, edge) == 0 && mtcp_close(server, once) == 0);
	pass(100);
}

static void failures(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(81)};
	int pair[2], id, error = 0;
	socklen_t len = sizeof(error);
	char byte;

	connected(pair);
	watch(server, server_ep, MTCP_EPOLL_CTL_ADD, pair[1], 0);
	assert(mtcp_abort(client, pair[0]) == 0);
	refused(mtcp_abort(client, pair[0]), EBADF);
	pass(1);
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLERR);
	len = 0;
	assert(mtcp_getsockopt(server, pair[1], SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	assert(error == ECONNRESET && len == sizeof(error));
	assert(mtcp_read(server, pair[1], &byte, 1) == 0);
	assert(mtcp_abort(server, pair[1]) == 0);
	refused(mtcp_close(server, pair[1]), EBADF);

	to.sin_addr.s_addr = inet_addr("10.0.0.1");
	id = mtcp_socket(client, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	refused(mtcp_connect(client, id, (struct sockaddr *)&to, sizeof(to)), EINPROGRESS);
	watch(client, client_ep, MTCP_EPOLL_CTL_ADD, id, MTCP_EPOLLOUT);
	pass(1);
	assert(ready(client, client_ep, id) == MTCP_EPOLLERR);
	assert(mtcp_getsockopt(client, id, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	assert(error == ECONNREFUSED);
	assert(mtcp_close(client, id) == 0);
}

/* Each event has one bit: programs of mTCP compare with it, or look for one after the other. The next
 * wait has the next bit, and none is lost. */
static void one_bit_each(void)
{
	uint32_t interest = MTCP_EPOLLIN | MTCP_EPOLLOUT | MTCP_EPOLLRDHUP;
	int pair[2], id;
	char byte;

	/* Nothing is reported of a socket that was not opened. */
	id = mtcp_socket(server, AF_INET, SOCK_STREAM, 0);
	watch(server, server_ep, MTCP_EPOLL_CTL_ADD, id, interest);
	assert(ready(server, server_ep, id) == 0);
	assert(mtcp_close(server, id) == 0);

	connected(pair);
	watch(server, server_ep, MTCP_EPOLL_CTL_ADD, pair[1], interest | MTCP_EPOLLET);
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLOUT);
	assert(mtcp_write(client, pair[0], "a", 1) == 1);
	pass(1);
	/* An edge brings what it is about. */
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLIN);
	assert(ready(server, server_ep, pair[1]) == 0);
	watch(server, server_ep, MTCP_EPOLL_CTL_MOD, pair[1], interest | MTCP_EPOLLET);
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLOUT);
	/* Bytes that come meanwhile do not put the other bit off. */
	assert(mtcp_write(client, pair[0], "b", 1) == 1);
	pass(1);
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLIN);
	assert(ready(server, server_ep, pair[1]) == 0);

	watch(server, server_ep, MTCP_EPOLL_CTL_MOD, pair[1], interest);
	for (int i = 0; i < 4; i++)
		assert(ready(server, server_ep, pair[1]) == (i % 2 ? MTCP_EPOLLIN : MTCP_EPOLLOUT));
	assert(mtcp_close(client, pair[0]) == 0);
	pass(1);
	/* What is unread comes before the end, and what ends a connection closes it once. */
	watch(server, server_ep, MTCP_EPOLL_CTL_MOD, pair[1], MTCP_EPOLLIN | MTCP_EPOLLRDHUP);
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLIN);
	assert(ready(server, server_ep, pair[1]) == MTCP_EPOLLRDHUP);
	assert(mtcp_read(server, pair[1], &byte, 1) == 1 && byte == 'a');
	assert(mtcp_close(server, pair[1]) == 0);
	assert(ready(server, server_ep, pair[1]) == 0);
	pass(100);
}

/* A connection on which nothing moves ends after tcp_timeout; one on which something does is kept. */
static void idle(void)
{
	int moving[2], still[2], error = 0;
	socklen_t len = sizeof(error);
	struct mtcp_conf conf;
	char byte;

	assert(mtcp_getconf(&conf) == 0 && conf.tcp_timeout == 30);
	connected(moving);
	watch(client, client_ep, MTCP_EPOLL_CTL_MOD, moving[0], 0);
	connected(still);
	watch(client, client_ep, MTCP_EPOLL_CTL_MOD, still[0], 0);
	for (int second = 0; second < 29; second++) {
		assert(mtcp_write(client, moving[0], "x", 1) == 1);
		pass(1);
		assert(mtcp_read(server, moving[1], &byte, 1) == 1);
		clock_now += 1000000;
		assert(ready(client, client_ep, still[0]) == 0);
	}
	/* What is late by an eighth at most. */
	for (int second = 0; second < 9; second++) {
		assert(mtcp_write(client, moving[0], "x", 1) == 1);
		clock_now += 1000000;
		pass(1);
	}
	assert(ready(client, client_ep, still[0]) == MTCP_EPOLLERR);
	assert(mtcp_getsockopt(client, still[0], SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	assert(error == ETIMEDOUT);
	assert(mtcp_close(client, still[0]) == 0 && mtcp_close(server, still[1]) == 0);
	assert(ready(client, client_ep, moving[0]) == 0);
	assert(mtcp_abort(client, moving[0]) == 0 && mtcp_close(server, moving[1]) == 0);
	pass(1);
}

static void options(void)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 3};
	int on = 1, off = 0, got = 0, most = 700, id = mtcp_socket(client, AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(got);

	assert(mtcp_getsockopt(client, id, IPPROTO_TCP, TCP_NODELAY, &got, &len) == 0 && got == 1);
	assert(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off)) == 0);
	assert(mtcp_getsockopt(client, id, IPPROTO_TCP, TCP_NODELAY, &got, &len) == 0 && got == 0);
	assert(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0);
	assert(mtcp_getsockopt(client, id, IPPROTO_TCP, TCP_CORK, &got, &len) == 0 && got == 1);
	assert(mtcp_getsockopt(client, id, IPPROTO_TCP, TCP_MAXSEG, &got, &len) == 0 && got == 536);
	assert(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_MAXSEG, &most, sizeof(most)) == 0);
	assert(mtcp_getsockopt(client, id, IPPROTO_TCP, TCP_MAXSEG, &got, &len) == 0 && got == most);
	refused(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_MAXSEG, &on, sizeof(on)), EINVAL);
	most = 1 << 16;
	refused(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_MAXSEG, &most, sizeof(most)), EINVAL);
	assert(mtcp_setsockopt(client, id, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) == 0);
	assert(mtcp_setsockopt(client, id, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off)) == 0);
	assert(mtcp_getsockopt(client, id, SOL_SOCKET, SO_KEEPALIVE, &got, &len) == 0 && got == 0);
	assert(mtcp_setsockopt(client, id, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	assert(mtcp_setsockopt(client, id, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	refused(mtcp_getsockopt(client, id, SOL_SOCKET, SO_REUSEADDR, &got, &len), ENOSYS);
	refused(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_NODELAY, NULL, 4), EFAULT);
	refused(mtcp_setsockopt(client, id, IPPROTO_TCP, TCP_NODELAY, &on, 1), EINVAL);
	assert(mtcp_socket_ioctl(client, id, FIONBIO, &on) == 0);
	refused(mtcp_socket_ioctl(client, id, TIOCOUTQ, &on), EINVAL);
	refused(mtcp_socket_ioctl(client, id, FIONREAD, &on), EBADF);
	refused(mtcp_socket_ioctl(server, listener, FIONREAD, &on), EBADF);
	assert(mtcp_setsock_nonblock(client, client_ep) == 0);
	refused(mtcp_abort(client, id), ENOTCONN);
	refused(mtcp_read(client, id, (char *)&on, 1), ENOTCONN);
	refused(mtcp_socket(client, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	refused(mtcp_socket(client, AF_INET, SOCK_DGRAM, 0), EINVAL);
	refused(mtcp_listen(client, id, 0), EINVAL);
	refused(mtcp_listen(client, client_ep, 1), ENOTSOCK);
	refused(mtcp_init_rss(client, INADDR_ANY, 0, 0, 0), EINVAL);
	assert(mtcp_init_rss(client, INADDR_ANY, 1, inet_addr("10.0.0.1"), htons(80)) == 0);
	assert(mtcp_close(client, id) == 0);
}

/* Calls in the wrong order or on the wrong kind of number fail as mTCP's do. */
static void mistakes(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(80)}, peer;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(80)};
	struct mtcp_epoll_event event = {.events = MTCP_EPOLLIN};
	int id = mtcp_socket(server, AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(peer);

	to.sin_addr.s_addr = inet_addr("10.0.0.2");
	refused(mtcp_getpeername(server, id, (struct sockaddr *)&peer, &len), ENOTCONN);
	refused(mtcp_accept(server, id, NULL, NULL), EINVAL);
	refused(mtcp_accept(server, server_ep, NULL, NULL), EINVAL);
	refused(mtcp_connect(server, id, NULL, sizeof(to)), EFAULT);
	refused(mtcp_connect(server, id, (struct sockaddr *)&to, 3), EAFNOSUPPORT);
	refused(mtcp_connect(server, listener, (struct sockaddr *)&to, sizeof(to)), ENOTSOCK);
	refused(mtcp_bind(server, id, NULL, sizeof(any)), EINVAL);
	assert(mtcp_bind(server, id, (struct sockaddr *)&any, sizeof(any)) == 0);
	refused(mtcp_bind(server, id, (struct sockaddr *)&any, sizeof(any)), EINVAL);
	refused(mtcp_listen(server, id, 16), EADDRINUSE);
	refused(mtcp_epoll_ctl(server, server_ep, MTCP_EPOLL_CTL_ADD, listener, &event), EEXIST);
	refused(mtcp_epoll_ctl(server, server_ep, MTCP_EPOLL_CTL_MOD, id, &event), ENOENT);
	refused(mtcp_epoll_ctl(server, server_ep, MTCP_EPOLL_CTL_ADD, id, NULL), EINVAL);
	refused(mtcp_epoll_ctl(server, listener, MTCP_EPOLL_CTL_ADD, id, &event), EINVAL);
	refused(mtcp_epoll_ctl(server, 9999, MTCP_EPOLL_CTL_ADD, id, &event), EBADF);
	refused(mtcp_epoll_ctl(server, server_ep, 4, id, &event), EINVAL);
	refused(mtcp_epoll_create(server, 0), EINVAL);
	refused(mtcp_epoll_create1(server, 1), EINVAL);
	refused(mtcp_epoll_wait(server, server_ep, &event, 0, 0), EINVAL);
	refused(mtcp_setsock_nonblock(server, -1), EBADF);
	assert(mtcp_close(server, id) == 0);
}

/* A number comes back after all others, and is below max_concurrency: programs of mTCP still use
 * what they keep for a connection when they have closed it and begun another. */
static void numbers(void)
{
	struct mtcp_conf conf;
	int first, id, count = 0;

	assert(mtcp_getconf(&conf) == 0);
	first = mtcp_socket(client, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_close(client, first) == 0);
	do {
		id = mtcp_socket(client, AF_INET, SOCK_STREAM, 0);
		assert(id >= 0 && id < conf.max_concurrency);
		assert(mtcp_close(client, id) == 0);
		count++;
	} while (id != first);
	assert(count > conf.max_concurrency / 2);
}

/* A peer that goes on after the program has closed takes no number from it. */
static void half_closed(void)
{
	int pairs[100][2];
	struct mtcp_conf conf;

	assert(mtcp_getconf(&conf) == 0 && conf.max_concurrency < 100);
	for (int i = 0; i < 100; i++) {
		connected(pairs[i]);
		assert(mtcp_close(client, pairs[i][0]) == 0);
		pass(1);
	}
	for (int i = 0; i < 100; i++)
		assert(mtcp_close(server, pairs[i][1]) == 0);
	pass(1);
}

static void pipes(void)
{
	char buffer[8];
	int ids[2], unread;

	assert(mtcp_pipe(server, ids) == 0);
	watch(server, server_ep, MTCP_EPOLL_CTL_ADD, ids[0], MTCP_EPOLLIN | MTCP_EPOLLET);
	assert(ready(server, server_ep, ids[0]) == 0);
	refused(mtcp_read(server, ids[0], buffer, 8), EAGAIN);
	assert(mtcp_write(server, ids[1], "five!", 5) == 5);
	assert(ready(server, server_ep, ids[0]) == MTCP_EPOLLIN);
	assert(ready(server, server_ep, ids[0]) == 0);
	assert(mtcp_socket_ioctl(server, ids[0], FIONREAD, &unread) == 0 && unread == 5);
	assert(mtcp_read(server, ids[0], buffer, 8) == 5 && memcmp(buffer, "five!", 5) == 0);
	refused(mtcp_read(server, ids[1], buffer, 8), EINVAL);
	assert(mtcp_close(server, ids[1]) == 0);
	assert(ready(server, server_ep, ids[0]) == MTCP_EPOLLIN);
	assert(mtcp_read(server, ids[0], buffer, 8) == 0);
	assert(mtcp_close(server, ids[0]) == 0);
}

int main(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(80)};
	struct mtcp_conf conf;

	assert(!context(&wires[0], "nonsense") && errno == EINVAL);
	assert(!mtcp_create_context_on(NULL, "10.0.0.1") && errno == EFAULT);
	server = context(&wires[0], "10.0.0.1");
	assert(mtcp_getconf(&conf) == 0);
	conf.max_concurrency = 64;
	assert(mtcp_setconf(&conf) == 0);
	client = context(&wires[1], "10.0.0.2, fd00::2");
	assert(server && client && server != client);
	server_ep = mtcp_epoll_create(server, 8);
	client_ep = mtcp_epoll_create(client, 8);
	listener = mtcp_socket(server, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_setsock_nonblock(server, listener) == 0);
	assert(mtcp_bind(server, listener, (struct sockaddr *)&any, sizeof(any)) == 0);
	refused(mtcp_bind(server, listener, (struct sockaddr *)&any, 3), EINVAL);
	assert(mtcp_listen(server, listener, 16) == 0);
	watch(server, server_ep, MTCP_EPOLL_CTL_ADD, listener, MTCP_EPOLLIN);
	transfers();
	no_delay();
	triggers();
	failures();
	one_bit_each();
	idle();
	options();
	mistakes();
	numbers();
	half_closed();
	pipes();
	assert(strcmp(EventToString(MTCP_EPOLLIN), "IN") == 0);
	mtcp_destroy_context(client);
	mtcp_destroy_context(server);
	puts("done");
	return 0;
}
