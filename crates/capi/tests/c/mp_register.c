#include "test.h"

static void round_trip(mp_channel *channel, int near, int far)
{
	char room[4] = "";
	mp_handle handle = mp_register(channel, near, NULL, NULL, 0);

	CHECK(handle > 0);
	CHECK(mp_read(handle, room, sizeof(room)) > 0);
	EQUAL(write(far, "ping", 4), 4);
	EQUAL(next_event(channel).size, 4);
	EQUAL(memcmp(room, "ping", 4), 0);
	EQUAL(mp_close(handle), 0);
	close(far);
}

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .handles_max = 1};
	mp_channel *channel = make_channel(NULL), *small;
	int ends[2], spare;
	mp_handle handle;

	EQUAL(mp_register(NULL, 0, NULL, NULL, 0), -EINVAL);
	EQUAL(mp_register(channel, -1, NULL, NULL, 0), -EBADF);
	EQUAL(mp_register(channel, 1000000, NULL, NULL, 0), -EBADF);
	EQUAL(mp_register(channel, (1 << 30) | 5, NULL, NULL, 0), -EBADF);

	tcp_pair(ends);
	round_trip(channel, ends[0], ends[1]);
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	round_trip(channel, ends[0], ends[1]);
	EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends), 0);
	round_trip(channel, ends[0], ends[1]);
	EQUAL(pipe(ends), 0);
	round_trip(channel, ends[0], ends[1]);

	/* A descriptor has one handle at a time. */
	tcp_pair(ends);
	handle = mp_register(channel, ends[0], NULL, NULL, 0);
	CHECK(handle > 0);
	EQUAL(mp_register(channel, ends[0], NULL, NULL, 0), -EEXIST);
	EQUAL(mp_unregister(handle), ends[0]);
	handle = mp_register(channel, ends[0], NULL, NULL, 0);
	CHECK(handle > 0);
	spare = dup(ends[0]);
	EQUAL(mp_close(handle), 0);
	EQUAL(mp_flush(channel), 0);
	CHECK(dup2(spare, ends[0]) == ends[0]);
	close(spare);
	round_trip(channel, ends[0], ends[1]);

	/* A bound is an error of its own, and the descriptor stays ours. */
	small = make_channel(&config);
	tcp_pair(ends);
	handle = mp_register(small, ends[0], NULL, NULL, 0);
	CHECK(handle > 0);
	spare = dup(ends[1]);
	EQUAL(mp_register(small, spare, NULL, NULL, 0), -MP_EHANDLES);
	EQUAL(close(spare), 0);
	EQUAL(mp_destroy(small), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
