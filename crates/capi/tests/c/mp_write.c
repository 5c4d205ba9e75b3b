#include "test.h"

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .write_queue_max = 2};
	mp_channel *channel = make_channel(&config);
	struct mp_event event;
	char answer[6];
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	mp_op first, second;

	EQUAL(mp_write(handle, NULL, 4), -EINVAL);
	EQUAL(mp_write(handle, answer, 0), -EINVAL);
	EQUAL(mp_write(handle, answer, SIZE_MAX), -EINVAL);
	REFUSES_STRANGE(mp_write(handle, answer, 4));

	first = mp_write(handle, "abc", 3);
	second = mp_write(handle, "def", 3);
	CHECK(first > 0 && second > 0 && first != second);
	EQUAL(mp_write(handle, "ghi", 3), -MP_EQUEUE);
	event = next_event(channel);
	EQUAL(event.cmd, MP_WRITE);
	EQUAL(event.op, first);
	EQUAL(event.size, 3);
	EQUAL(memcmp(event.buf, "abc", 3), 0);
	event = next_event(channel);
	EQUAL(event.op, second);
	EQUAL(event.size, 3);
	read_all(peer, answer, 6);
	EQUAL(memcmp(answer, "abcdef", 6), 0);

	/* A peer that is gone. */
	close(peer);
	for (int i = 0; i < 100; i++) {
		CHECK(mp_write(handle, "x", 1) > 0);
		event = next_event(channel);
		if (event.size < 0)
			break;
	}
	CHECK(event.size == -EPIPE || event.size == -ECONNRESET);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
