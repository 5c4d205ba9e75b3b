#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL), *second = make_channel(NULL);
	struct sockaddr_in addr;
	struct mp_event event;
	mp_handle listener;
	int client, fd;
	char byte;

	EQUAL(mp_lwsocket_to_fd(NULL, 1 << 30), -EINVAL);
	EQUAL(mp_lwsocket_to_fd(channel, 1 << 30), -EBADF);
	EQUAL(mp_lwsocket_to_fd(channel, 0), -EBADF);
	EQUAL(mp_lwsocket_to_fd(channel, -1), -EBADF);

	listener = mp_register(channel, listening_socket(&addr), NULL, NULL, 0);
	CHECK(mp_accept(listener, 1, 1) > 0);
	client = connect_to(&addr);
	event = next_event(channel);
	CHECK(event.fd >= 1 << 30);
	EQUAL(mp_lwsocket_to_fd(second, event.fd), -EBADF);
	fd = mp_lwsocket_to_fd(channel, event.fd);
	CHECK(fd >= 0 && fd < 1 << 30);
	EQUAL(mp_lwsocket_to_fd(channel, event.fd), -EBADF);
	EQUAL(write(fd, "f", 1), 1);
	read_all(client, &byte, 1);
	EQUAL(byte, 'f');

	/* The descriptor is the only thing that holds the connection open. */
	no_event(channel);
	close(fd);
	EQUAL(read(client, &byte, 1), 0);
	EQUAL(mp_destroy(channel), 0);
	EQUAL(mp_destroy(second), 0);
	return 0;
}
