#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_stats before, after;
	struct mp_event event;
	mp_handle handles[8];
	int peers[8], seen = 0;

	EQUAL(mp_next_ready(NULL, &event), -EINVAL);
	EQUAL(mp_next_ready(channel, NULL), -EINVAL);
	EQUAL(mp_next_ready(channel, &event), 0);
	for (int i = 0; i < 8; i++) {
		handles[i] = tcp_handle(channel, NULL, &peers[i]);
		CHECK(mp_read_stream(handles[i]) > 0);
	}
	EQUAL(mp_flush(channel), 0);
	for (int i = 0; i < 8; i++)
		EQUAL(write(peers[i], "r", 1), 1);

	/* What one dispatch brought comes without a system call. */
	while (seen < 8) {
		EQUAL(mp_dispatch(channel, 10 * SECOND, &event), 1);
		EQUAL(mp_stats(channel, &before, sizeof(before)), 0);
		do {
			EQUAL(event.cmd, MP_READ);
			EQUAL(event.size, 1);
			EQUAL(mp_buffer_release(channel, event.buffer), 0);
			seen++;
		} while (mp_next_ready(channel, &event) == 1);
		EQUAL(mp_stats(channel, &after, sizeof(after)), 0);
		EQUAL(after.system_calls, before.system_calls);
		EQUAL(after.turns, before.turns);
	}
	EQUAL(mp_next_ready(channel, &event), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
