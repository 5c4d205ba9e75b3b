#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	int first, second;
	mp_op sooner, later;

	EQUAL(mp_move_timer(NULL, 1, 0), -EINVAL);
	EQUAL(mp_move_timer(channel, 0, 0), -ENOENT);
	EQUAL(mp_move_timer(channel, 12345, 0), -ENOENT);
	later = mp_timer(channel, 0, &second);
	sooner = mp_timer(channel, 3600 * SECOND, &first);
	CHECK(later > 0 && sooner > 0);
	EQUAL(mp_move_timer(channel, later, -1), -EINVAL);
	EQUAL(mp_move_timer(channel, later, SECOND / 50), 0);
	EQUAL(mp_move_timer(channel, sooner, 0), 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_TIMER);
	EQUAL(event.op, sooner);
	CHECK(event.cookie == &first);
	EQUAL(mp_move_timer(channel, sooner, 0), -ENOENT);
	event = next_event(channel);
	EQUAL(event.op, later);
	EQUAL(event.size, 0);
	CHECK(event.cookie == &second);

	later = mp_timer(channel, SECOND, &second);
	EQUAL(mp_cancel(channel, later), 0);
	EQUAL(mp_move_timer(channel, later, 0), -ENOENT);
	event = next_event(channel);
	EQUAL(event.size, -ECANCELED);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
