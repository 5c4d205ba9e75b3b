#include "test.h"

#include <limits.h>
#include <poll.h>
#include <megapipe_mmsg.h>

#define SOCKETS 40

static char rooms[2 * SOCKETS][16];
static struct iovec pieces[2 * SOCKETS];
static struct mmsghdr msgs[2 * SOCKETS];

/* Loopback may deliver a message after the call that sent it, where the CPU is busy. */
static void arrived(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	EQUAL(poll(&poll_fd, 1, 20000), 1);
}

int main(void)
{
	struct sockaddr_in addr, other;
	struct mmep eps[SOCKETS + 2];
	int sockets[SOCKETS], senders[SOCKETS], pipes[2];
	char wild;

	for (int i = 0; i < 2 * SOCKETS; i++) {
		pieces[i].iov_base = rooms[i];
		pieces[i].iov_len = sizeof(rooms[i]);
		msgs[i].msg_hdr.msg_iov = &pieces[i];
		msgs[i].msg_hdr.msg_iovlen = 1;
	}
	for (int i = 0; i < SOCKETS; i++) {
		sockets[i] = bound_socket(SOCK_DGRAM, 0, &addr);
		senders[i] = bound_socket(SOCK_DGRAM, 0, &other);
		EQUAL(connect(senders[i], (struct sockaddr *)&addr, sizeof(addr)), 0);
	}
	EQUAL(recvmmmsg(NULL, 1, msgs, 1, 0), -EFAULT);
	EQUAL(recvmmmsg(eps, 1, NULL, 1, 0), -EFAULT);
	EQUAL(recvmmmsg(eps, -1, msgs, 1, 0), -EINVAL);
	EQUAL(recvmmmsg(eps, 1, msgs, -1, 0), -EINVAL);
	EQUAL(recvmmmsg(eps, 0, msgs, 1, INT_MIN), -EINVAL); /* MSG_CMSG_COMPAT */
	EQUAL(recvmmmsg(NULL, 0, NULL, 0, 0), 0);

	/* One message on each even socket; room for two of each. */
	for (int i = 0; i < SOCKETS; i++) {
		if (i % 2 == 0) {
			EQUAL(send(senders[i], &i, sizeof(i), 0), sizeof(i));
			arrived(sockets[i]);
		}
		eps[i].sockfd = sockets[i];
		eps[i].num = 2;
		eps[i].offset = INT_MIN;
	}
	EQUAL(recvmmmsg(eps, SOCKETS, msgs, 2 * SOCKETS, MP_LIMITED), SOCKETS / 2);
	for (int i = 0; i < SOCKETS; i++) {
		EQUAL(eps[i].num, i % 2 == 0 ? 1 : -EAGAIN);
		if (i % 2 == 0) {
			EQUAL(eps[i].offset, 2 * i);
			EQUAL(msgs[eps[i].offset].msg_len, sizeof(i));
			EQUAL(memcmp(rooms[eps[i].offset], &i, sizeof(i)), 0);
		}
	}

	/* Bad entries and bad memory are each their own; the others are served. */
	EQUAL(pipe(pipes), 0);
	for (int i = 0; i < 6; i++) {
		EQUAL(send(senders[i], "longer than the room", 20, 0), 20);
		arrived(sockets[i]);
	}
	for (int i = 0; i < 6; i++) {
		eps[i].sockfd = sockets[i];
		eps[i].num = 1;
	}
	eps[0].sockfd = -1;
	eps[1].sockfd = pipes[0];
	eps[2].num = 0;
	msgs[2].msg_hdr.msg_iov = NULL;
	EQUAL(recvmmmsg(eps, 6, msgs, 2 * SOCKETS, MP_LIMITED), 2);
	EQUAL(eps[0].num, -EBADF);
	EQUAL(eps[1].num, -ENOTSOCK);
	EQUAL(eps[2].num, -EINVAL);
	EQUAL(eps[3].num, -EFAULT);
	EQUAL(eps[4].num, 1);
	EQUAL(eps[4].offset, 3);
	EQUAL(msgs[3].msg_len, 16);
	CHECK(msgs[4].msg_hdr.msg_flags & MSG_TRUNC);
	msgs[2].msg_hdr.msg_iov = &pieces[2];

	/* A limit keeps a flooded socket from the places of the others. */
	while (recv(sockets[0], &wild, 1, MSG_DONTWAIT) >= 0)
		;
	for (int i = 0; i < 100; i++)
		EQUAL(send(senders[0], "flood", 5, 0), 5);
	for (int i = 0; i < 4; i++) {
		eps[i].sockfd = sockets[10 + i];
		eps[i].num = 2;
		EQUAL(send(senders[10 + i], "other", 5, 0), 5);
		arrived(sockets[10 + i]);
	}
	eps[0].sockfd = sockets[0];
	EQUAL(recvmmmsg(eps, 4, msgs, 8, MP_LIMITED | MSG_TRUNC), 2 + 3);
	EQUAL(eps[0].num, 2);
	for (int i = 1; i < 4; i++) {
		EQUAL(eps[i].num, 1);
		EQUAL(memcmp(rooms[eps[i].offset], "other", 5), 0);
	}
	return 0;
}
