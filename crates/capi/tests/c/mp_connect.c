#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr, nobody;
	const struct sockaddr *to = (struct sockaddr *)&addr;
	int listener = listening_socket(&addr), socket_fd, server, unused;
	struct mp_event event;
	mp_handle handle;
	char byte;

	socket_fd = socket(AF_INET, SOCK_STREAM, 0);
	handle = mp_register(channel, socket_fd, NULL, NULL, 0);
	EQUAL(mp_connect(handle, NULL, sizeof(addr)), -EINVAL);
	EQUAL(mp_connect(handle, to, 1), -EINVAL);
	EQUAL(mp_connect(handle, to, 100000), -EINVAL);
	CHECK(mp_connect(handle, to, sizeof(addr)) > 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_CONNECT);
	EQUAL(event.size, 0);
	EQUAL(event.handle, handle);
	EQUAL(mp_write_quiet(handle, "c", 1), 0);
	EQUAL(mp_flush(channel), 0);
	server = accept(listener, NULL, NULL);
	read_all(server, &byte, 1);
	EQUAL(byte, 'c');

	/* A port that was free a moment ago, kept from others by being bound. */
	unused = bound_socket(SOCK_STREAM, 0, &nobody);
	handle = mp_register(channel, socket(AF_INET, SOCK_STREAM, 0), NULL, NULL, 0);
	CHECK(mp_connect(handle, (struct sockaddr *)&nobody, sizeof(nobody)) > 0);
	EQUAL(next_event(channel).size, -ECONNREFUSED);
	close(unused);
	{
		struct sockaddr_in addr_of_strange = addr;

		REFUSES_STRANGE(mp_connect(handle, (struct sockaddr *)&addr_of_strange, sizeof(addr)));
	}
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
