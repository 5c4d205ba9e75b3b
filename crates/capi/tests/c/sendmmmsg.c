#include "test.h"

#include <megapipe_mmsg.h>

#define SOCKETS 20

int main(void)
{
	char first[] = "first", second[] = "second", room[16];
	struct iovec pieces[2] = { { first, 5 }, { second, 6 } };
	struct mmsghdr msgs[2];
	struct mmep eps[SOCKETS];
	struct sockaddr_in addr;
	int receivers[SOCKETS], tcp[2];

	memset(msgs, 0, sizeof(msgs));
	for (int i = 0; i < 2; i++) {
		msgs[i].msg_hdr.msg_iov = &pieces[i];
		msgs[i].msg_hdr.msg_iovlen = 1;
	}
	/* The same two messages down every socket, and the second one alone down the last. */
	for (int i = 0; i < SOCKETS; i++) {
		receivers[i] = bound_socket(SOCK_DGRAM, 0, &addr);
		eps[i].sockfd = socket(AF_INET, SOCK_DGRAM, 0);
		EQUAL(connect(eps[i].sockfd, (struct sockaddr *)&addr, sizeof(addr)), 0);
		eps[i].num = 2;
		eps[i].offset = 0;
	}
	eps[SOCKETS - 1].num = 1;
	eps[SOCKETS - 1].offset = 1;
	EQUAL(sendmmmsg(eps, SOCKETS, msgs, 2, 0), 2 * SOCKETS - 1);
	for (int i = 0; i < SOCKETS; i++) {
		if (i < SOCKETS - 1) {
			EQUAL(eps[i].num, 2);
			EQUAL(recv(receivers[i], room, sizeof(room), 0), 5);
			EQUAL(memcmp(room, "first", 5), 0);
		}
		EQUAL(recv(receivers[i], room, sizeof(room), 0), 6);
		EQUAL(memcmp(room, "second", 6), 0);
	}
	EQUAL(msgs[0].msg_len, 5);
	EQUAL(msgs[1].msg_len, 6);

	/* Errors are each socket's own, and nobody gets a SIGPIPE. */
	tcp_pair(tcp);
	EQUAL(shutdown(tcp[0], SHUT_WR), 0);
	eps[0].sockfd = tcp[0];
	eps[1].sockfd = -1;
	eps[2].offset = 1;
	for (int i = 0; i < 5; i++)
		eps[i].num = 2;
	EQUAL(sendmmmsg(eps, 5, msgs, 2, 0), 4);
	EQUAL(eps[0].num, -EPIPE);
	EQUAL(eps[1].num, -EBADF);
	EQUAL(eps[2].num, -EINVAL);
	EQUAL(eps[3].num, 2);
	EQUAL(sendmmmsg(NULL, 1, msgs, 2, 0), -EFAULT);
	EQUAL(sendmmmsg(eps, 1, NULL, 2, 0), -EFAULT);
	EQUAL(sendmmmsg(eps, -1, msgs, 2, 0), -EINVAL);
	return 0;
}
