#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	char byte;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_flush(NULL), -EINVAL);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_write_quiet(handle, "f", 1), 0);
	/* Queued, not sent. */
	EQUAL(recv(peer, &byte, 1, MSG_DONTWAIT), -1);
	EQUAL(errno, EAGAIN);
	EQUAL(mp_flush(channel), 0);
	read_all(peer, &byte, 1);
	EQUAL(byte, 'f');
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
