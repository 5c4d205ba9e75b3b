#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	char first[] = "abc", second[] = "defg", answer[7];
	struct iovec iov[3] = {{first, 3}, {NULL, 0}, {second, 4}};
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_writev(handle, NULL, 2), -EINVAL);
	EQUAL(mp_writev(handle, iov, 0), -EINVAL);
	EQUAL(mp_writev(handle, iov, 1025), -EINVAL);
	REFUSES_STRANGE(mp_writev(handle, iov, 2));
	CHECK(mp_writev(handle, iov, 3) > 0);
	memset(iov, 0, sizeof(iov));
	event = next_event(channel);
	EQUAL(event.cmd, MP_WRITE);
	EQUAL(event.size, 7);
	CHECK(event.buf == first);
	read_all(peer, answer, 7);
	EQUAL(memcmp(answer, "abcdefg", 7), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
