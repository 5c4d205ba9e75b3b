#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in own, other, from;
	const struct sockaddr *to = (struct sockaddr *)&other;
	socklen_t len = sizeof(from);
	struct mp_event event;
	char room[8];
	int receiver = bound_socket(SOCK_DGRAM, 0, &other), peer;
	mp_handle handle = mp_register(channel, bound_socket(SOCK_DGRAM, 0, &own), NULL, NULL, 0);
	mp_handle stream = tcp_handle(channel, NULL, &peer);

	CHECK(handle > 0);
	EQUAL(mp_sendto(handle, NULL, 4, to, sizeof(other)), -EINVAL);
	EQUAL(mp_sendto(handle, "x", 1, NULL, 0), -EINVAL);
	EQUAL(mp_sendto(handle, "x", 1, to, 1), -EINVAL);
	EQUAL(mp_sendto(stream, "x", 1, to, sizeof(other)), -EOPNOTSUPP);
	REFUSES_STRANGE(mp_sendto(handle, "x", 1, to, sizeof(other)));

	CHECK(mp_sendto(handle, "datagram", 8, to, sizeof(other)) > 0);
	CHECK(mp_sendto(handle, NULL, 0, to, sizeof(other)) > 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_WRITE);
	EQUAL(event.size, 8);
	EQUAL(next_event(channel).size, 0);
	EQUAL(recvfrom(receiver, room, sizeof(room), 0, (struct sockaddr *)&from, &len), 8);
	EQUAL(memcmp(room, "datagram", 8), 0);
	EQUAL(from.sin_port, own.sin_port);
	EQUAL(recv(receiver, room, sizeof(room), 0), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
