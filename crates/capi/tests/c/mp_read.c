#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_config config = {.size = sizeof(config), .operations_max = 1};
	mp_channel *small;
	struct mp_event event;
	char first[4], second[4];
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_read(handle, NULL, 4), -EINVAL);
	EQUAL(mp_read(handle, first, 0), -EINVAL);
	EQUAL(mp_read(handle, first, SIZE_MAX), -EINVAL);
	REFUSES_STRANGE(mp_read(handle, first, 4));

	/* Reads of a handle are served in their order. */
	CHECK(mp_read(handle, first, sizeof(first)) > 0);
	CHECK(mp_read(handle, second, sizeof(second)) > 0);
	EQUAL(write(peer, "abcdef", 6), 6);
	event = next_event(channel);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, 4);
	EQUAL(event.buffer, 0);
	CHECK(event.buf == first && memcmp(first, "abcd", 4) == 0);
	event = next_event(channel);
	EQUAL(event.size, 2);
	CHECK(event.buf == second && memcmp(second, "ef", 2) == 0);

	/* End of file. */
	CHECK(mp_read(handle, first, sizeof(first)) > 0);
	close(peer);
	EQUAL(next_event(channel).size, 0);

	small = make_channel(&config);
	handle = tcp_handle(small, NULL, &peer);
	CHECK(mp_read(handle, first, 4) > 0);
	EQUAL(mp_read(handle, second, 4), -MP_EOPERATIONS);
	EQUAL(mp_destroy(small), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
