#include "receiver.h"

int main(void)
{
	mp_receiver *receiver = make_receiver(NULL);
	struct sockaddr_in addr;
	int fd = bound_socket(SOCK_DGRAM, 0, &addr);

	CHECK(mp_receiver_add(receiver, fd, NULL) > 0);
	EQUAL(mp_receiver_destroy(receiver), 0);
	EQUAL(mp_receiver_destroy(receiver), -EBADF);
	EQUAL(mp_receiver_destroy(NULL), -EBADF);
	/* Its sockets are closed. */
	EQUAL(fcntl(fd, F_GETFD), -1);
	return 0;
}
