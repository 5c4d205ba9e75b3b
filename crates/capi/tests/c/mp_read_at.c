#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	char first[4], second[4];
	int fd = disk_file(), peer, seen = 0;
	mp_handle handle, stream = tcp_handle(channel, NULL, &peer);

	EQUAL(pwrite(fd, "0123456789", 10, 0), 10);
	handle = mp_register(channel, fd, NULL, NULL, 0);
	CHECK(handle > 0);
	EQUAL(mp_read_at(handle, NULL, 4, 0), -EINVAL);
	EQUAL(mp_read_at(stream, first, 4, 0), -EOPNOTSUPP);
	CHECK(mp_read_at(handle, first, 4, 2) > 0);
	CHECK(mp_read_at(handle, second, 4, 8) > 0);
	while (seen < 2) {
		struct mp_event event = next_event(channel);

		EQUAL(event.cmd, MP_READ);
		EQUAL(event.size, event.buf == first ? 4 : 2);
		seen++;
	}
	EQUAL(memcmp(first, "2345", 4), 0);
	EQUAL(memcmp(second, "89", 2), 0);
	CHECK(mp_read_at(handle, first, 4, 10) > 0);
	EQUAL(next_event(channel).size, 0);
	REFUSES_STRANGE(mp_read_at(handle, first, 4, 0));
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
