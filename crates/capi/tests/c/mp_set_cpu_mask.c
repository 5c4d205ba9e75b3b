#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr;
	int listener = bound_socket(SOCK_STREAM, 1, &addr), peer;
	mp_handle partitioned, plain = tcp_handle(channel, NULL, &peer);
	cpu_set_t mask;

	CPU_ZERO(&mask);
	CPU_SET(0, &mask);
	partitioned = mp_register(channel, listener, NULL, &mask, sizeof(mask));
	CHECK(partitioned > 0);
	CPU_SET(1, &mask);
	EQUAL(mp_set_cpu_mask(partitioned, &mask, sizeof(mask)), 0);
	EQUAL(mp_set_cpu_mask(partitioned, NULL, sizeof(mask)), -EINVAL);
	EQUAL(mp_set_cpu_mask(partitioned, &mask, 3), -EINVAL);
	EQUAL(mp_set_cpu_mask(plain, &mask, sizeof(mask)), -EINVAL);
	REFUSES_STRANGE(mp_set_cpu_mask(handle, &mask, sizeof(mask)));

	/* Connections still arrive. */
	CHECK(mp_accept(partitioned, 1, 0) > 0);
	EQUAL(mp_flush(channel), 0);
	close(connect_to(&addr));
	EQUAL(next_event(channel).cmd, MP_ACCEPT);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
