#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	int value = -1, ends[2];
	socklen_t len = sizeof(value);
	mp_handle handle;

	tcp_pair(ends);
	handle = lwsocket_handle(channel, ends[0]);
	EQUAL(mp_getsockopt(handle, SOL_SOCKET, SO_TYPE, NULL, &len), -EINVAL);
	EQUAL(mp_getsockopt(handle, SOL_SOCKET, SO_TYPE, &value, NULL), -EINVAL);
	REFUSES_STRANGE(mp_getsockopt(handle, SOL_SOCKET, SO_TYPE, &value, &len));
	EQUAL(mp_getsockopt(handle, SOL_SOCKET, SO_TYPE, &value, &len), 0);
	EQUAL(value, SOCK_STREAM);
	EQUAL(len, sizeof(value));
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
