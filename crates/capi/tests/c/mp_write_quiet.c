#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	static char large[20000], answer[20008];
	struct mp_event event;
	char small[] = "answer42";
	int peer, addr, status = 0;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_write_quiet(handle, NULL, 4), -EINVAL);
	EQUAL(mp_write_quiet(handle, small, 0), -EINVAL);
	EQUAL(mp_write_quiet(handle, small, SIZE_MAX), -EINVAL);
	REFUSES_STRANGE(mp_write_quiet(handle, small, 4));

	/* Copied: the memory may change at once. */
	memset(large, 'l', sizeof(large));
	EQUAL(mp_write_quiet(handle, small, 8), 0);
	EQUAL(mp_write_quiet(handle, large, sizeof(large)), 0);
	memset(small, 0, sizeof(small));
	memset(large, 0, sizeof(large));
	EQUAL(mp_flush(channel), 0);
	read_all(peer, answer, sizeof(answer));
	EQUAL(memcmp(answer, "answer42", 8), 0);
	for (size_t i = 8; i < sizeof(answer); i++)
		EQUAL(answer[i], 'l');
	no_event(channel);

	/* A full queue refuses a write, and room is an event, once the peer reads. */
	{
		static char sink[1 << 16];
		int peer_of_slow, more = 1;
		mp_handle slow = tcp_handle(channel, &addr, &peer_of_slow);

		while ((status = mp_write_quiet(slow, large, sizeof(large))) == 0)
			;
		EQUAL(status, -MP_EQUEUE);
		no_event(channel);
		fcntl(peer_of_slow, F_SETFL, O_NONBLOCK);
		while (more) {
			while (read(peer_of_slow, sink, sizeof(sink)) > 0)
				;
			more = mp_dispatch(channel, 1000000, &event) == 0;
		}
		EQUAL(event.cmd, MP_WRITABLE);
		EQUAL(event.handle, slow);
		CHECK(event.cookie == &addr);
		EQUAL(mp_write_quiet(slow, large, sizeof(large)), 0);
		EQUAL(mp_reset(slow), 0);
		close(peer_of_slow);
		status = 0;
	}

	/* A failure does surface. */
	close(peer);
	for (int i = 0; i < 100 && status == 0; i++) {
		EQUAL(mp_write_quiet(handle, "x", 1), 0);
		EQUAL(mp_flush(channel), 0);
		status = mp_dispatch(channel, 0, &event);
	}
	EQUAL(status, 1);
	EQUAL(event.cmd, MP_WRITE);
	CHECK(event.size == -EPIPE || event.size == -ECONNRESET);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
