/* What the programs about low-water marks share. */
#include "test.h"

#include <megapipe_mmsg.h>
#include <poll.h>

#define MARK 100
#define MILLISECOND INT64_C(1000000)

static inline mp_lowat *make_lowat(uint32_t flags)
{
	mp_lowat *lowat = NULL;

	EQUAL(mp_lowat_create(flags, &lowat), 0);
	CHECK(lowat != NULL);
	return lowat;
}

static inline int is_readable(int fd, int milliseconds)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return poll(&poll_fd, 1, milliseconds);
}

static inline int mark_of(int fd)
{
	int mark;
	socklen_t len = sizeof(mark);

	EQUAL(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, &len), 0);
	return mark;
}
