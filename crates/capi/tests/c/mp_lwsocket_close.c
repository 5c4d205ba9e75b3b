#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	int ends[2], lwsocket;
	char byte;

	EQUAL(mp_lwsocket_close(NULL, 1 << 30), -EINVAL);
	EQUAL(mp_lwsocket_close(channel, 1 << 30), -EBADF);
	EQUAL(mp_lwsocket_close(channel, 3), -EBADF);
	tcp_pair(ends);
	lwsocket = mp_fd_to_lwsocket(channel, ends[0]);
	CHECK(lwsocket >= 0);
	EQUAL(mp_lwsocket_close(channel, lwsocket), 0);
	EQUAL(mp_lwsocket_close(channel, lwsocket), -EBADF);
	no_event(channel);
	EQUAL(read(ends[1], &byte, 1), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
