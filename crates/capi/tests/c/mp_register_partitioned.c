#include "test.h"

/* Two channels share one address by cpu masks; every connection reaches one of them. */
int main(void)
{
	mp_channel *channels[2] = {make_channel(NULL), make_channel(NULL)};
	struct sockaddr_in addr;
	cpu_set_t masks[2];
	mp_handle listeners[2];
	int plain, listener, accepted = 0;

	plain = bound_socket(SOCK_DGRAM, 0, &addr);
	CPU_ZERO(&masks[0]);
	CPU_ZERO(&masks[1]);
	for (int cpu = 0; cpu < CPU_SETSIZE / 8; cpu++)
		CPU_SET(cpu, &masks[cpu % 2]);
	EQUAL(mp_register(channels[0], plain, NULL, &masks[0], sizeof(masks[0])), -EOPNOTSUPP);
	EQUAL(mp_register(channels[0], plain, NULL, &masks[0], 0), -EINVAL);
	EQUAL(mp_register(channels[0], -1, NULL, &masks[0], sizeof(masks[0])), -EBADF);

	listener = bound_socket(SOCK_STREAM, 0, &addr);
	for (int i = 0; i < 2; i++) {
		listeners[i] = mp_register(channels[i], listener, NULL, &masks[i], sizeof(masks[i]));
		CHECK(listeners[i] > 0);
		CHECK(mp_accept(listeners[i], MP_UNLIMITED, 0) > 0);
		EQUAL(mp_flush(channels[i]), 0);
	}
	/* The socket we gave is still ours. */
	EQUAL(close(listener), 0);

	for (int i = 0; i < 8; i++)
		close(connect_to(&addr));
	for (int i = 0; accepted < 8; i = !i) {
		struct mp_event event;
		int status = mp_dispatch(channels[i], SECOND / 10, &event);

		CHECK(status >= 0);
		if (status == 1) {
			EQUAL(event.cmd, MP_ACCEPT);
			CHECK(event.fd >= 0);
			close(event.fd);
			accepted++;
		}
	}
	EQUAL(mp_close(listeners[0]), 0);
	EQUAL(mp_destroy(channels[0]), 0);
	EQUAL(mp_destroy(channels[1]), 0);
	return 0;
}
