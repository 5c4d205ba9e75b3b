#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	char first[3], second[5];
	struct iovec iov[2] = {{first, sizeof(first)}, {second, sizeof(second)}};
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_readv(handle, NULL, 2), -EINVAL);
	EQUAL(mp_readv(handle, iov, 0), -EINVAL);
	EQUAL(mp_readv(handle, iov, -1), -EINVAL);
	EQUAL(mp_readv(handle, iov, 1025), -EINVAL);
	REFUSES_STRANGE(mp_readv(handle, iov, 2));

	CHECK(mp_readv(handle, iov, 2) > 0);
	/* Only the memory is lent, not the array. */
	memset(iov, 0, sizeof(iov));
	EQUAL(write(peer, "abcdefg", 7), 7);
	event = next_event(channel);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, 7);
	CHECK(event.buf == first);
	EQUAL(memcmp(first, "abc", 3), 0);
	EQUAL(memcmp(second, "defg", 4), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
