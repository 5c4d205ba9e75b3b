#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	char room[8];
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	mp_op op, stream;

	EQUAL(mp_cancel(NULL, 1), -EINVAL);
	for (size_t i = 0; i < STRANGE; i++)
		EQUAL(mp_cancel(channel, strange_handles[i]), -ENOENT);

	op = mp_read(handle, room, sizeof(room));
	CHECK(op > 0);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_cancel(channel, op), 0);
	event = next_event(channel);
	EQUAL(event.op, op);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, -ECANCELED);
	CHECK(event.buf == room);
	EQUAL(mp_cancel(channel, op), -ENOENT);

	/* The handle goes on. */
	stream = mp_read_stream(handle);
	CHECK(stream > 0);
	EQUAL(write(peer, "on", 2), 2);
	event = next_event(channel);
	EQUAL(event.size, 2);
	EQUAL(event.more, 1);
	EQUAL(mp_buffer_release(channel, event.buffer), 0);
	EQUAL(mp_cancel(channel, stream), 0);
	event = next_event(channel);
	EQUAL(event.size, -ECANCELED);
	EQUAL(event.more, 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
