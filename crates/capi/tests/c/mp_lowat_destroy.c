#include "lowat.h"

int main(void)
{
	mp_lowat *lowat = make_lowat(MP_LOWAT_THREAD);
	int ends[2];

	tcp_pair(ends);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, SECOND), 0);
	EQUAL(mark_of(ends[0]), MARK);
	EQUAL(mp_lowat_destroy(lowat), 0);
	EQUAL(mark_of(ends[0]), 1);
	EQUAL(mp_lowat_destroy(lowat), -EBADF);
	EQUAL(mp_lowat_destroy(NULL), -EBADF);
	return 0;
}
