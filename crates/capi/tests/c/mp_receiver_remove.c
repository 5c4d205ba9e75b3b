#include "receiver.h"

int main(void)
{
	mp_receiver *receiver = make_receiver(NULL);
	struct mp_message message;
	char room[8];
	int sender, fd;
	int64_t socket = udp_of(receiver, NULL, &sender);

	EQUAL(send(sender, "waits", 5, 0), 5);
	fd = mp_receiver_remove(receiver, socket);
	CHECK(fd >= 0);
	EQUAL(recv(fd, room, sizeof(room), MSG_DONTWAIT), 5);
	EQUAL(mp_receiver_remove(receiver, socket), -EBADF);
	EQUAL(mp_receiver_remove(receiver, 0), -EBADF);
	EQUAL(mp_receiver_remove(NULL, socket), -EBADF);
	EQUAL(send(sender, "not ours", 8, 0), 8);
	EQUAL(wait_on(receiver, &message, 1, 0), 0);
	EQUAL(mp_receiver_destroy(receiver), 0);
	return 0;
}
