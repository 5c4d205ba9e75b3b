#include "test.h"
#include <signal.h>

static mp_channel *channel;
static mp_handle handle;
static volatile int from_handler;

static void on_alarm(int signal)
{
	(void)signal;
	from_handler = (int)mp_write_quiet(handle, "x", 1);
}

/* A signal ends a wait; a call from its handler is refused and harms nothing. */
int main(void)
{
	struct sigaction action;
	struct mp_event event;
	int peer, status;

	memset(&action, 0, sizeof(action));
	action.sa_handler = on_alarm;
	EQUAL(sigaction(SIGALRM, &action, NULL), 0);
	channel = make_channel(NULL);
	handle = tcp_handle(channel, NULL, &peer);
	alarm(1);
	status = mp_dispatch(channel, 20 * SECOND, &event);
	EQUAL(status, -EINTR);
	EQUAL(from_handler, -MP_EBUSY);
	CHECK(mp_write(handle, "x", 1) > 0);
	EQUAL(next_event(channel).size, 1);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
