#include "test.h"

/* A datagram is one message: 64 pieces go, empty ones uncounted, and one more is refused. */
static void datagram(mp_channel *channel)
{
	static char letters[66];
	struct iovec iov[66];
	char answer[128];
	struct mp_event event;
	mp_handle handle;
	int ends[2];

	EQUAL(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
	handle = mp_register(channel, ends[0], NULL, NULL, 0);
	CHECK(handle > 0);
	for (int i = 0; i < 66; i++) {
		letters[i] = (char)('A' + i % 26);
		iov[i] = (struct iovec){letters + i, 1};
	}
	EQUAL(mp_writev(handle, iov, 65), -EINVAL);
	iov[64].iov_len = 0;
	iov[65].iov_len = 0;
	CHECK(mp_writev(handle, iov, 66) > 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_WRITE);
	EQUAL(event.size, 64);
	EQUAL(recv(ends[1], answer, sizeof(answer), 0), 64);
	EQUAL(memcmp(answer, letters, 64), 0);
	EQUAL(mp_close(handle), 0);
	close(ends[1]);
}

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
	datagram(channel);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
