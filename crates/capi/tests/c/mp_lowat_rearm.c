#include "lowat.h"

int main(void)
{
	mp_lowat *lowat = make_lowat(MP_LOWAT_THREAD);
	char room[MARK];
	int ends[2];

	tcp_pair(ends);
	EQUAL(mp_lowat_rearm(lowat, ends[0]), -ENOENT);
	EQUAL(mp_lowat_rearm(NULL, ends[0]), -EBADF);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 50 * MILLISECOND), 0);
	EQUAL(send(ends[1], "x", 1, 0), 1);
	EQUAL(is_readable(ends[0], 20000), 1);
	EQUAL(mark_of(ends[0]), 1);
	EQUAL(recv(ends[0], room, sizeof(room), 0), 1);
	EQUAL(mp_lowat_rearm(lowat, ends[0]), 0);
	EQUAL(mark_of(ends[0]), MARK);
	EQUAL(mp_lowat_destroy(lowat), 0);
	return 0;
}
