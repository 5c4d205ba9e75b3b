#include "test.h"
#include <poll.h>

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	int cookie, ends[2], number;
	mp_op op, other;

	EQUAL(pipe(ends), 0);
	EQUAL(mp_poll(NULL, ends[0], POLLIN, NULL), -EINVAL);
	EQUAL(mp_poll(channel, ends[0], POLLNVAL, NULL), -EINVAL);
	EQUAL(mp_poll(channel, -1, POLLIN, NULL), -EBADF);
	EQUAL(mp_poll(channel, 1 << 30, POLLIN, NULL), -EBADF);

	op = mp_poll(channel, ends[0], POLLIN, &cookie);
	CHECK(op > 0);
	no_event(channel);
	EQUAL(write(ends[1], "x", 1), 1);
	event = next_event(channel);
	EQUAL(event.cmd, MP_POLL);
	EQUAL(event.size, POLLIN);
	EQUAL(event.op, op);
	EQUAL(event.handle, 0);
	EQUAL(event.fd, -1);
	CHECK(event.cookie == &cookie);
	no_event(channel);

	/* The descriptor stays the caller's: it was read by nobody, and is ready still. */
	op = mp_poll(channel, ends[0], POLLIN | POLLRDHUP, NULL);
	other = mp_poll(channel, ends[1], POLLOUT, NULL);
	CHECK(op > 0 && other > 0);
	for (int i = 0; i < 2; i++) {
		event = next_event(channel);
		EQUAL(event.size, event.op == op ? POLLIN : POLLOUT);
	}
	EQUAL(fcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);

	op = mp_poll(channel, ends[0], 0, NULL);
	EQUAL(mp_cancel(channel, op), 0);
	EQUAL(next_event(channel).size, -ECANCELED);
	op = mp_poll(channel, ends[0], 0, NULL);
	no_event(channel);
	EQUAL(close(ends[1]), 0);
	EQUAL(next_event(channel).size, POLLHUP);

	number = ends[0];
	EQUAL(close(number), 0);
	CHECK(mp_poll(channel, number, POLLIN, NULL) > 0);
	EQUAL(next_event(channel).size, -EBADF);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
