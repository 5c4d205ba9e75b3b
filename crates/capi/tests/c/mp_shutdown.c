#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	char byte, room[4];
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_shutdown(handle, 7), -EINVAL);
	REFUSES_STRANGE(mp_shutdown(handle, SHUT_WR));
	CHECK(mp_shutdown(handle, SHUT_WR) > 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_DISCONNECT);
	EQUAL(event.size, 0);
	EQUAL(read(peer, &byte, 1), 0);

	/* The other direction is open. */
	CHECK(mp_read(handle, room, sizeof(room)) > 0);
	EQUAL(write(peer, "open", 4), 4);
	EQUAL(next_event(channel).size, 4);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
