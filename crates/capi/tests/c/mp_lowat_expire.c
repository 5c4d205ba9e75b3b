#include "lowat.h"

int main(void)
{
	mp_lowat *lowat = make_lowat(0);
	struct pollfd both[2];
	int ends[2];

	EQUAL(mp_lowat_expire(lowat), 0);
	EQUAL(mp_lowat_expire(NULL), -EBADF);
	tcp_pair(ends);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 50 * MILLISECOND), 0);
	EQUAL(send(ends[1], "x", 1, 0), 1);
	both[0] = (struct pollfd){ .fd = mp_lowat_fd(lowat), .events = POLLIN };
	both[1] = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	do {
		CHECK(poll(both, 2, 20000) > 0);
		if (both[0].revents)
			EQUAL(mp_lowat_expire(lowat), 0);
	} while (!both[1].revents);
	EQUAL(mp_lowat_destroy(lowat), 0);
	return 0;
}
