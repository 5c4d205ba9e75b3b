#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	REFUSES_STRANGE(mp_read_buffer(handle));
	CHECK(mp_read_buffer(handle) > 0);
	EQUAL(write(peer, "pool", 4), 4);
	event = next_event(channel);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, 4);
	EQUAL(event.more, 0);
	CHECK(event.buffer != 0 && memcmp(event.buf, "pool", 4) == 0);
	EQUAL(mp_buffer_release(channel, event.buffer), 0);

	/* Once: the next bytes wait for the next read. */
	EQUAL(write(peer, "more", 4), 4);
	no_event(channel);
	CHECK(mp_read_buffer(handle) > 0);
	event = next_event(channel);
	EQUAL(event.size, 4);
	EQUAL(mp_buffer_release(channel, event.buffer), 0);
	close(peer);
	CHECK(mp_read_buffer(handle) > 0);
	event = next_event(channel);
	EQUAL(event.size, 0);
	EQUAL(event.buffer, 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
