#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	char *room = malloc(16), byte;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	REFUSES_STRANGE(mp_reset(handle));
	CHECK(mp_read(handle, room, 16) > 0);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_reset(handle), 0);
	free(room);
	EQUAL(mp_reset(handle), -EBADF);
	EQUAL(mp_flush(channel), 0);
	no_event(channel);
	EQUAL(read(peer, &byte, 1), -1);
	EQUAL(errno, ECONNRESET);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
