#include "test.h"

static void sets(mp_handle handle)
{
	int on = 1, value = 0;
	socklen_t len = sizeof(value);

	EQUAL(mp_setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, NULL, sizeof(on)), -EINVAL);
	EQUAL(mp_setsockopt(handle, IPPROTO_TCP, 12345, &on, sizeof(on)), -ENOPROTOOPT);
	EQUAL(mp_setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	EQUAL(mp_getsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &value, &len), 0);
	CHECK(value != 0);
}

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	int on = 1, peer, ends[2];

	REFUSES_STRANGE(mp_setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	sets(tcp_handle(channel, NULL, &peer));
	tcp_pair(ends);
	sets(lwsocket_handle(channel, ends[0]));
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
