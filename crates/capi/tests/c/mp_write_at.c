#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	char content[8];
	int fd = disk_file(), same = dup(fd), peer;
	mp_handle handle = mp_register(channel, fd, NULL, NULL, 0);
	mp_handle stream = tcp_handle(channel, NULL, &peer);

	CHECK(handle > 0);
	EQUAL(mp_write_at(handle, NULL, 4, 0), -EINVAL);
	EQUAL(mp_write_at(stream, "x", 1, 0), -EOPNOTSUPP);
	REFUSES_STRANGE(mp_write_at(handle, "x", 1, 0));
	CHECK(mp_write_at(handle, "efgh", 4, 4) > 0);
	CHECK(mp_write_at(handle, "abcd", 4, 0) > 0);
	for (int i = 0; i < 2; i++) {
		struct mp_event event = next_event(channel);

		EQUAL(event.cmd, MP_WRITE);
		EQUAL(event.size, 4);
	}
	EQUAL(pread(same, content, 8, 0), 8);
	EQUAL(memcmp(content, "abcdefgh", 8), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
