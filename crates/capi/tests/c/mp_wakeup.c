#include "test.h"

static void *wake(void *channel)
{
	EQUAL(mp_wakeup(channel), 0);
	return NULL;
}

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	pthread_t thread;

	EQUAL(mp_wakeup(NULL), -EINVAL);
	EQUAL(pthread_create(&thread, NULL, wake, channel), 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_WAKE);
	EQUAL(event.handle, 0);
	CHECK(event.cookie == NULL);
	EQUAL(pthread_join(thread, NULL), 0);

	/* Wakes between two dispatches are one. */
	EQUAL(mp_wakeup(channel), 0);
	EQUAL(mp_wakeup(channel), 0);
	EQUAL(next_event(channel).cmd, MP_WAKE);
	no_event(channel);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
