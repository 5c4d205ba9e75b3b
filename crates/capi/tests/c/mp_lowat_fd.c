#include "lowat.h"

int main(void)
{
	mp_lowat *lowat = make_lowat(0);
	int ends[2];

	CHECK(mp_lowat_fd(lowat) >= 0);
	EQUAL(mp_lowat_fd(NULL), -EBADF);
	EQUAL(is_readable(mp_lowat_fd(lowat), 0), 0);
	tcp_pair(ends);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 8 * MILLISECOND), 0);
	EQUAL(is_readable(mp_lowat_fd(lowat), 20000), 1);
	EQUAL(mp_lowat_destroy(lowat), 0);
	lowat = make_lowat(MP_LOWAT_THREAD);
	EQUAL(mp_lowat_fd(lowat), -EINVAL);
	EQUAL(mp_lowat_destroy(lowat), 0);
	return 0;
}
