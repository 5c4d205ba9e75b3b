#include "test.h"

static mp_channel *elsewhere;

static void *use_elsewhere(void *handle)
{
	struct mp_event event;
	mp_channel *own;

	EQUAL(mp_dispatch(elsewhere, 0, &event), -MP_EWRONGTHREAD);
	EQUAL(mp_write_quiet(*(mp_handle *)handle, "x", 1), -MP_EWRONGTHREAD);
	own = make_channel(NULL);
	EQUAL(mp_write_quiet(*(mp_handle *)handle, "x", 1), -MP_EWRONGTHREAD);
	EQUAL(mp_destroy(elsewhere), -MP_EWRONGTHREAD);
	EQUAL(mp_destroy(own), 0);
	return NULL;
}

int main(void)
{
	mp_channel *channel = make_channel(NULL), *second;
	struct mp_event event;
	pthread_t thread;
	char byte;
	int peer, peer_of_second, mark;
	mp_handle handle = tcp_handle(channel, &mark, &peer), other;
	mp_op op;

	EQUAL(mp_dispatch(NULL, 0, &event), -EINVAL);
	EQUAL(mp_dispatch(channel, 0, NULL), -EINVAL);
	EQUAL(mp_dispatch(channel, 0, &event), 0);
	EQUAL(mp_dispatch(channel, 1000000, &event), 0);

	op = mp_read(handle, &byte, 1);
	CHECK(op > 0);
	EQUAL(write(peer, "b", 1), 1);
	EQUAL(mp_dispatch(channel, MP_FOREVER, &event), 1);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, 1);
	EQUAL(event.handle, handle);
	EQUAL(event.op, op);
	EQUAL(event.fd, -1);
	EQUAL(event.more, 0);
	CHECK(event.cookie == &mark && event.buf == &byte && byte == 'b');

	/* Two channels of one thread, turn by turn. */
	second = make_channel(NULL);
	other = tcp_handle(second, NULL, &peer_of_second);
	for (int i = 0; i < 3; i++) {
		CHECK(mp_write(handle, "1", 1) > 0 && mp_write(other, "2", 1) > 0);
		EQUAL(next_event(second).handle, other);
		EQUAL(next_event(channel).handle, handle);
	}
	read_all(peer, &byte, 1);
	EQUAL(byte, '1');
	read_all(peer_of_second, &byte, 1);
	EQUAL(byte, '2');

	elsewhere = channel;
	EQUAL(pthread_create(&thread, NULL, use_elsewhere, &handle), 0);
	EQUAL(pthread_join(thread, NULL), 0);
	CHECK(mp_write(handle, "1", 1) > 0);
	EQUAL(next_event(channel).size, 1);
	EQUAL(mp_destroy(channel), 0);
	EQUAL(mp_destroy(second), 0);
	return 0;
}
