#include "test.h"

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .lwsockets_max = 1};
	mp_channel *channel = make_channel(&config);
	int ends[2], others[2], file = disk_file(), lwsocket;
	mp_handle handle;
	char byte;

	tcp_pair(ends);
	tcp_pair(others);
	EQUAL(mp_fd_to_lwsocket(NULL, ends[0]), -EINVAL);
	EQUAL(mp_fd_to_lwsocket(channel, -1), -EBADF);
	EQUAL(mp_fd_to_lwsocket(channel, 1000000), -EBADF);
	EQUAL(mp_fd_to_lwsocket(channel, file), -ENOTSOCK);
	EQUAL(close(file), 0);

	lwsocket = mp_fd_to_lwsocket(channel, ends[0]);
	CHECK(lwsocket >= 1 << 30);
	/* The descriptor has gone. */
	EQUAL(fcntl(ends[0], F_GETFD), -1);
	/* At the bound it stays. */
	EQUAL(mp_fd_to_lwsocket(channel, others[0]), -MP_ELWSOCKETS);
	EQUAL(write(others[0], "s", 1), 1);

	handle = mp_register(channel, lwsocket, NULL, NULL, 0);
	CHECK(handle > 0);
	EQUAL(mp_register(channel, lwsocket, NULL, NULL, 0), -EBADF);
	EQUAL(mp_write_quiet(handle, "l", 1), 0);
	EQUAL(mp_flush(channel), 0);
	read_all(ends[1], &byte, 1);
	EQUAL(byte, 'l');

	/* Out of the channel and in again. */
	EQUAL(mp_unregister(handle) >= 1 << 30, 1);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
