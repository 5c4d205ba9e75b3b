#include "test.h"

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .lwsockets_max = 1};
	mp_channel *channel = make_channel(NULL), *small;
	struct mp_event event;
	struct sockaddr_in addr;
	mp_handle listener, connection;
	int clients[4], seen = 0;
	char byte;

	listener = mp_register(channel, listening_socket(&addr), &addr, NULL, 0);
	CHECK(listener > 0);
	EQUAL(mp_accept(listener, 0, 0), -EINVAL);
	EQUAL(mp_accept(listener, -2, 0), -EINVAL);
	EQUAL(mp_accept(listener, 1, 4), -EINVAL);
	EQUAL(mp_accept(listener, 1, -1), -EINVAL);
	REFUSES_STRANGE(mp_accept(handle, 1, 0));

	/* One, as a descriptor. */
	CHECK(mp_accept(listener, 1, 0) > 0);
	clients[0] = connect_to(&addr);
	event = next_event(channel);
	EQUAL(event.cmd, MP_ACCEPT);
	EQUAL(event.handle, listener);
	EQUAL(event.size, 0);
	EQUAL(event.more, 0);
	CHECK(event.cookie == &addr);
	CHECK(event.fd >= 0 && event.fd < 1 << 30);
	EQUAL(write(event.fd, "d", 1), 1);
	read_all(clients[0], &byte, 1);
	EQUAL(byte, 'd');
	close(event.fd);

	/* So many, as lightweight sockets: no more are taken. */
	CHECK(mp_accept(listener, 2, 1) > 0);
	for (int i = 1; i < 4; i++)
		clients[i] = connect_to(&addr);
	for (; seen < 2; seen++) {
		event = next_event(channel);
		EQUAL(event.cmd, MP_ACCEPT);
		EQUAL(event.more, seen == 0);
		CHECK(event.fd >= 1 << 30);
		connection = mp_register(channel, event.fd, NULL, NULL, 0);
		CHECK(connection > 0);
		EQUAL(mp_write_quiet(connection, "l", 1), 0);
		EQUAL(mp_close(connection), 0);
	}
	no_event(channel);
	read_all(clients[1], &byte, 1);
	EQUAL(byte, 'l');

	/* All, until the handle is closed. */
	CHECK(mp_accept(listener, MP_UNLIMITED, 0) > 0);
	event = next_event(channel);
	EQUAL(event.more, 1);
	close(event.fd);
	EQUAL(mp_close(listener), 0);
	no_event(channel);

	/* With their peers' addresses, of which each is right. */
	listener = mp_register(channel, listening_socket(&addr), NULL, NULL, 0);
	CHECK(mp_accept(listener, MP_UNLIMITED, MP_ACCEPT_LWSOCKET | MP_ACCEPT_PEER) > 0);
	for (int i = 0; i < 4; i++)
		clients[i] = connect_to(&addr);
	for (seen = 0; seen < 4; seen++) {
		struct sockaddr_in own;
		socklen_t len = sizeof(own);
		int known = 0;

		event = next_event(channel);
		EQUAL(event.cmd, MP_ACCEPT);
		EQUAL(event.more, 1);
		EQUAL(event.addrlen, sizeof(own));
		for (int i = 0; i < 4; i++) {
			EQUAL(getsockname(clients[i], (struct sockaddr *)&own, &len), 0);
			known += ((struct sockaddr_in *)event.addr)->sin_port == own.sin_port;
		}
		EQUAL(known, 1);
		EQUAL(mp_lwsocket_close(channel, event.fd), 0);
	}
	EQUAL(mp_close(listener), 0);

	/* A bound is an error of its own, and accepting goes on when there is room. */
	small = make_channel(&config);
	listener = mp_register(small, listening_socket(&addr), NULL, NULL, 0);
	CHECK(mp_accept(listener, MP_UNLIMITED, 1) > 0);
	clients[0] = connect_to(&addr);
	event = next_event(small);
	EQUAL(event.size, 0);
	connection = mp_register(small, event.fd, NULL, NULL, 0);
	clients[1] = connect_to(&addr);
	event = next_event(small);
	EQUAL(event.size, -MP_ELWSOCKETS);
	EQUAL(event.fd, -1);
	EQUAL(event.more, 1);
	EQUAL(mp_close(connection), 0);
	event = next_event(small);
	EQUAL(event.size, 0);
	CHECK(event.fd >= 1 << 30);
	EQUAL(mp_destroy(small), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
