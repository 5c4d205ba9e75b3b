#include "test.h"

/* More than the kernel takes for a peer that does not read. */
static char much[1 << 26];

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .write_queue_max = 2};
	mp_channel *channel = make_channel(&config);
	struct mp_event event;
	char answer[9];
	int peer, silent;
	mp_handle handle = tcp_handle(channel, NULL, &peer), slow;
	mp_op first, second;

	EQUAL(mp_write(handle, NULL, 4), -EINVAL);
	EQUAL(mp_write(handle, answer, 0), -EINVAL);
	EQUAL(mp_write(handle, answer, SIZE_MAX), -EINVAL);
	REFUSES_STRANGE(mp_write(handle, answer, 4));

	first = mp_write(handle, "abc", 3);
	second = mp_write(handle, "def", 3);
	CHECK(first > 0 && second > 0 && first != second);
	/* The queue is full, and the kernel takes it: there is room. */
	CHECK(mp_write(handle, "ghi", 3) > 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_WRITE);
	EQUAL(event.op, first);
	EQUAL(event.size, 3);
	EQUAL(memcmp(event.buf, "abc", 3), 0);
	event = next_event(channel);
	EQUAL(event.op, second);
	EQUAL(event.size, 3);
	EQUAL(next_event(channel).size, 3);
	read_all(peer, answer, 9);
	EQUAL(memcmp(answer, "abcdefghi", 9), 0);

	/* A peer that does not read. */
	slow = tcp_handle(channel, NULL, &silent);
	CHECK(mp_write(slow, much, sizeof(much)) > 0);
	CHECK(mp_write(slow, "def", 3) > 0);
	EQUAL(mp_write(slow, "ghi", 3), -MP_EQUEUE);

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
