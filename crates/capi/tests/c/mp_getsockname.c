#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in expected, addr;
	struct sockaddr *out = (struct sockaddr *)&addr;
	socklen_t len = sizeof(expected);
	int ends[2], lwsocket;
	mp_handle handle;

	tcp_pair(ends);
	EQUAL(getsockname(ends[0], (struct sockaddr *)&expected, &len), 0);
	lwsocket = mp_fd_to_lwsocket(channel, ends[0]);
	CHECK(lwsocket >= 0);
	handle = mp_register(channel, lwsocket, NULL, NULL, 0);
	CHECK(handle > 0);
	EQUAL(mp_getsockname(handle, NULL, &len), -EINVAL);
	EQUAL(mp_getsockname(handle, out, NULL), -EINVAL);
	REFUSES_STRANGE(mp_getsockname(handle, out, &len));
	len = sizeof(addr);
	EQUAL(mp_getsockname(handle, out, &len), 0);
	EQUAL(len, sizeof(expected));
	EQUAL(addr.sin_port, expected.sin_port);
	EQUAL(addr.sin_addr.s_addr, expected.sin_addr.s_addr);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
