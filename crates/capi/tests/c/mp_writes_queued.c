#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	static char large[1 << 20];
	char answer[7];
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	REFUSES_STRANGE(mp_writes_queued(handle));
	EQUAL(mp_writes_queued(handle), 0);
	EQUAL(mp_write_quiet(handle, "abc", 3), 0);
	EQUAL(mp_writes_queued(handle), 1);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_writes_queued(handle), 0);
	read_all(peer, answer, 3);
	EQUAL(memcmp(answer, "abc", 3), 0);

	/* The peer reads no more. */
	while (mp_write_quiet(handle, large, sizeof(large)) == 0 && mp_flush(channel) == 0 &&
	       mp_writes_queued(handle) < 2)
		;
	EQUAL(mp_writes_queued(handle), 2);
	EQUAL(mp_reset(handle), 0);
	EQUAL(mp_writes_queued(handle), -EBADF);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
