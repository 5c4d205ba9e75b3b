#include "lowat.h"

int main(void)
{
	mp_lowat *lowat = make_lowat(MP_LOWAT_THREAD);
	struct sockaddr_in addr;
	char room[MARK];
	int ends[2], udp = bound_socket(SOCK_DGRAM, 0, &addr), listener = listening_socket(&addr);

	tcp_pair(ends);
	EQUAL(mp_lowat_set(lowat, udp, MARK, SECOND), -EOPNOTSUPP);
	EQUAL(mp_lowat_set(lowat, listener, MARK, SECOND), -EOPNOTSUPP);
	EQUAL(mp_lowat_set(lowat, -1, MARK, SECOND), -EBADF);
	EQUAL(mp_lowat_set(lowat, ends[0], 0, SECOND), -EINVAL);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 0), -EINVAL);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, -1), -EINVAL);
	EQUAL(mp_lowat_set(NULL, ends[0], MARK, SECOND), -EBADF);

	/* Below the mark it takes its time, at the mark none. */
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 200 * MILLISECOND), 0);
	EQUAL(send(ends[1], "x", 1, 0), 1);
	EQUAL(is_readable(ends[0], 0), 0);
	EQUAL(is_readable(ends[0], 20000), 1);
	EQUAL(recv(ends[0], room, sizeof(room), 0), 1);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, 1000 * SECOND), 0);
	memset(room, 0, sizeof(room));
	EQUAL(send(ends[1], room, sizeof(room), 0), sizeof(room));
	EQUAL(is_readable(ends[0], 20000), 1);
	EQUAL(mp_lowat_destroy(lowat), 0);
	return 0;
}
