#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	char answer[4], *room = malloc(100);
	mp_handle handle;
	int peer;

	handle = tcp_handle(channel, NULL, &peer);
	CHECK(mp_read(handle, room, 100) > 0);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_write_quiet(handle, "last", 4), 0);
	EQUAL(mp_destroy(channel), 0);
	/* The memory is ours again, and what was written has gone out before the end. */
	free(room);
	read_all(peer, answer, 4);
	EQUAL(memcmp(answer, "last", 4), 0);
	EQUAL(read(peer, answer, 1), 0);

	/* What is gone is refused. */
	EQUAL(mp_destroy(NULL), -EINVAL);
	EQUAL(mp_destroy(channel), -EBADF);
	EQUAL(mp_close(handle), -EBADF);
	EQUAL(mp_dispatch(channel, 0, &event), -EBADF);
	EQUAL(mp_wakeup(channel), -EBADF);
	return 0;
}
