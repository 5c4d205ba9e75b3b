#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	int early, late;
	mp_op op;

	EQUAL(mp_timer(NULL, 0, NULL), -EINVAL);
	EQUAL(mp_timer(channel, -1, NULL), -EINVAL);
	op = mp_timer(channel, 3600 * SECOND, &late);
	CHECK(op > 0);
	CHECK(mp_timer(channel, SECOND / 2, &late) > 0);
	CHECK(mp_timer(channel, 1000000, &early) > 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_TIMER);
	EQUAL(event.size, 0);
	EQUAL(event.handle, 0);
	CHECK(event.cookie == &early);
	event = next_event(channel);
	CHECK(event.cookie == &late && event.op != op);

	EQUAL(mp_cancel(channel, op), 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_TIMER);
	EQUAL(event.op, op);
	EQUAL(event.size, -ECANCELED);
	CHECK(event.cookie == &late);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
