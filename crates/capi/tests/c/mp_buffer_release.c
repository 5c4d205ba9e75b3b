#include "test.h"

/* With a pool of two buffers and reads that fill them, a third waits for one to be given
 * back. */
#define SIZE 256

int main(void)
{
	struct mp_config config = {.size = sizeof(config), .read_buffers = 2, .buffer_size = SIZE};
	mp_channel *channel = make_channel(&config);
	struct mp_event events[3];
	mp_handle handles[3];
	char data[SIZE];
	int peers[3];

	memset(data, 'd', sizeof(data));
	EQUAL(mp_buffer_release(NULL, 1), -EINVAL);
	EQUAL(mp_buffer_release(channel, 0), -EBADF);
	EQUAL(mp_buffer_release(channel, 12345), -EBADF);

	for (int i = 0; i < 3; i++) {
		handles[i] = tcp_handle(channel, NULL, &peers[i]);
		CHECK(mp_read_buffer(handles[i]) > 0);
		EQUAL(write(peers[i], data, SIZE), SIZE);
	}
	for (int i = 0; i < 2; i++) {
		events[i] = next_event(channel);
		EQUAL(events[i].size, SIZE);
		CHECK(events[i].buffer != 0 && memcmp(events[i].buf, data, SIZE) == 0);
	}
	no_event(channel);
	EQUAL(mp_buffer_release(channel, events[0].buffer), 0);
	EQUAL(mp_buffer_release(channel, events[0].buffer), -EBADF);
	events[2] = next_event(channel);
	EQUAL(events[2].size, SIZE);
	EQUAL(memcmp(events[2].buf, data, SIZE), 0);
	CHECK(events[2].buffer != events[0].buffer);
	EQUAL(mp_buffer_release(channel, events[0].buffer), -EBADF);
	EQUAL(mp_buffer_release(channel, events[1].buffer), 0);
	EQUAL(mp_buffer_release(channel, events[2].buffer), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
