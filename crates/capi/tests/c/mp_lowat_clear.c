#include "lowat.h"

int main(void)
{
	mp_lowat *lowat = make_lowat(MP_LOWAT_THREAD);
	int ends[2];

	tcp_pair(ends);
	EQUAL(mp_lowat_clear(lowat, ends[0]), -ENOENT);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 1000 * SECOND), 0);
	EQUAL(send(ends[1], "x", 1, 0), 1);
	EQUAL(is_readable(ends[0], 10), 0);
	EQUAL(mp_lowat_clear(lowat, ends[0]), 0);
	EQUAL(is_readable(ends[0], 20000), 1);
	EQUAL(mp_lowat_clear(lowat, ends[0]), -ENOENT);
	EQUAL(mp_lowat_clear(NULL, ends[0]), -EBADF);
	EQUAL(mp_lowat_destroy(lowat), 0);
	return 0;
}
