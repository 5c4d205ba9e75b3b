#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event events[2], event;
	size_t total = 0;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	mp_op op;
	static char bytes[100000];

	EQUAL(mp_read_stream_quota(handle, 0), -EINVAL);
	op = mp_read_stream_quota(handle, 2);
	CHECK(op > 0);
	REFUSES_STRANGE(mp_read_stream_quota(handle, 2));
	EQUAL(write(peer, bytes, sizeof(bytes)), sizeof(bytes));
	for (int i = 0; i < 2; i++) {
		events[i] = next_event(channel);
		EQUAL(events[i].op, op);
		CHECK(events[i].size > 0 && events[i].buffer != 0);
		EQUAL(events[i].more, 1);
		total += (size_t)events[i].size;
	}
	no_event(channel);

	/* As many come as are given back, by a write too. */
	EQUAL(mp_buffer_release(channel, events[0].buffer), 0);
	events[0] = next_event(channel);
	total += (size_t)events[0].size;
	no_event(channel);
	EQUAL(mp_write_buffer(handle, events[1].buffer), 0);
	events[1] = next_event(channel);
	total += (size_t)events[1].size;
	no_event(channel);

	/* What is held does not keep a stream from its end, and counts for no other stream. */
	EQUAL(mp_cancel(channel, op), 0);
	event = next_event(channel);
	EQUAL(event.op, op);
	EQUAL(event.size, -ECANCELED);
	EQUAL(event.more, 0);
	CHECK(mp_read_stream_quota(handle, UINT16_MAX) > 0);
	close(peer);
	while (total < sizeof(bytes)) {
		event = next_event(channel);
		CHECK(event.size > 0);
		total += (size_t)event.size;
		EQUAL(mp_buffer_release(channel, event.buffer), 0);
	}
	EQUAL(mp_buffer_release(channel, events[0].buffer), 0);
	EQUAL(mp_buffer_release(channel, events[1].buffer), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
