#include "test.h"

/* More than the kernel takes for a peer that does not read. */
static char much[1 << 26];

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .read_buffers = 1, .write_queue_max = 1};
	mp_channel *channel = make_channel(&config);
	struct mp_event event;
	char answer[4];
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_write_buffer(handle, 0), -EBADF);
	CHECK(mp_read_stream(handle) > 0);
	/* An echo without a copy; a pool of one buffer shows that it goes back by itself. */
	for (int i = 0; i < 10; i++) {
		EQUAL(write(peer, "echo", 4), 4);
		event = next_event(channel);
		EQUAL(event.size, 4);
		EQUAL(mp_write_buffer(handle, event.buffer), 0);
		EQUAL(mp_write_buffer(handle, event.buffer), -EBADF);
		EQUAL(mp_buffer_release(channel, event.buffer), -EBADF);
		EQUAL(mp_flush(channel), 0);
		read_all(peer, answer, 4);
		EQUAL(memcmp(answer, "echo", 4), 0);
	}
	/* A buffer that was refused stays ours. */
	EQUAL(write(peer, "kept", 4), 4);
	event = next_event(channel);
	CHECK(mp_write(handle, much, sizeof(much)) > 0);
	EQUAL(mp_write_buffer(handle, event.buffer), -MP_EQUEUE);
	REFUSES_STRANGE(mp_write_buffer(handle, event.buffer));
	EQUAL(memcmp(event.buf, "kept", 4), 0);
	EQUAL(mp_buffer_release(channel, event.buffer), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
