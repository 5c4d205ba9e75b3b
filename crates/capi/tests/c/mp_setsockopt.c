#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	int on = 1, value = 0, peer;
	socklen_t len = sizeof(value);
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, NULL, sizeof(on)), -EINVAL);
	EQUAL(mp_setsockopt(handle, IPPROTO_TCP, 12345, &on, sizeof(on)), -ENOPROTOOPT);
	REFUSES_STRANGE(mp_setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	EQUAL(mp_setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	EQUAL(mp_getsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &value, &len), 0);
	CHECK(value != 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
