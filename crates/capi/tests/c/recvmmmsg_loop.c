#include "test.h"

#include <sys/epoll.h>

#include <megapipe_mmsg.h>

#define SOCKETS 512
#define EVENTS 64
#define VLEN 100

static struct epoll_event ready[EVENTS];
static struct mmep eps[EVENTS];
static struct mmsghdr msgs[VLEN];
static struct iovec pieces[VLEN];
static char rooms[VLEN][64];
static int set, senders[SOCKETS], sockets[SOCKETS], next_of[SOCKETS];

/* The loop of the proposal's authors: of each entry only the descriptor is set, whatever is in the other words. */
static int receive(int flags, int *calls)
{
	int total = 0, count = epoll_wait(set, ready, EVENTS, 0);

	for (int i = 0; i < count; i++)
		eps[i].sockfd = sockets[ready[i].data.u32];
	if (count > 0)
		++*calls;
	CHECK(count == 0 || recvmmmsg(eps, count, msgs, VLEN, flags) > 0);
	for (int i = 0; i < count; i++) {
		for (int j = 0; j < eps[i].num; j++) {
			struct mmsghdr *msg = &msgs[eps[i].offset + j];

			EQUAL(msg->msg_len, sizeof(int));
			EQUAL(memcmp(msg->msg_hdr.msg_iov->iov_base, &next_of[ready[i].data.u32], sizeof(int)), 0);
			next_of[ready[i].data.u32]++;
			total++;
		}
	}
	return total;
}

/* So many messages on each of so many sockets; it returns when all of these are readable. */
static void send_some(int count, int each)
{
	static int sent_of[SOCKETS], at;

	for (int i = 0; i < count; i++, at = (at + 37) % SOCKETS) {
		for (int j = 0; j < each; j++, sent_of[at]++)
			EQUAL(send(senders[at], &sent_of[at], sizeof(int), 0), sizeof(int));
	}
	for (int wait = 0; wait < 2000 && epoll_wait(set, ready, EVENTS, 10) < count; wait++)
		;
}

int main(void)
{
	struct sockaddr_in addr, other;
	unsigned char *garbage = (unsigned char *)eps;
	int calls = 0;

	set = epoll_create1(0);
	for (int i = 0; i < SOCKETS; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = i };

		sockets[i] = bound_socket(SOCK_DGRAM, 0, &addr);
		senders[i] = bound_socket(SOCK_DGRAM, 0, &other);
		EQUAL(connect(senders[i], (struct sockaddr *)&addr, sizeof(addr)), 0);
		EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, sockets[i], &event), 0);
	}
	for (int i = 0; i < VLEN; i++) {
		pieces[i] = (struct iovec){ rooms[i], sizeof(rooms[i]) };
		msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &pieces[i], .msg_iovlen = 1 };
	}
	/* An array of random bytes, and one that was used before. */
	for (size_t i = 0; i < sizeof(eps); i++)
		garbage[i] = i * 151 + 77;
	for (int each = 1; each <= 3; each++) {
		send_some(30, each);
		EQUAL(receive(0, &calls), 30 * each);
	}
	/* Each message comes, in its order, though one call leaves what waits behind the first message of a socket. */
	for (int round = 0; round < 400; round++) {
		int count = round % 2 ? 30 : 8, each = round % 50 ? 1 : 3, total = 0;

		send_some(count, each);
		for (int more = 0; total < count * each && more < 2000; more++)
			total += receive(round < 200 ? 0 : MSG_TRUNC, &calls);
		EQUAL(total, count * each);
	}
	CHECK(calls < 500);
	EQUAL(receive(0, &calls), 0);
	return 0;
}
