#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	static char large[1 << 20], room[1 << 16];
	size_t total = 0;
	ssize_t count;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	struct mp_event event;

	REFUSES_STRANGE(mp_disconnect(handle));
	/* Behind the queued writes: none is lost. */
	CHECK(mp_write(handle, large, sizeof(large)) > 0);
	CHECK(mp_disconnect(handle) > 0);
	for (int ended = 0; ended < 2;) {
		int status = mp_dispatch(channel, 0, &event);

		CHECK(status >= 0);
		if (status == 1) {
			EQUAL(event.cmd, ended == 0 ? MP_WRITE : MP_DISCONNECT);
			EQUAL(event.size, ended == 0 ? (int)sizeof(large) : 0);
			ended++;
		}
		count = recv(peer, room, sizeof(room), MSG_DONTWAIT);
		if (count > 0)
			total += (size_t)count;
	}
	while ((count = read(peer, room, sizeof(room))) > 0)
		total += (size_t)count;
	EQUAL(count, 0);
	EQUAL(total, sizeof(large));

	/* The handle stays registered. */
	CHECK(mp_write(handle, "x", 1) > 0);
	EQUAL(next_event(channel).size, -EPIPE);
	EQUAL(mp_close(handle), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
