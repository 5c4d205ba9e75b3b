#include "test.h"

/* More than socket buffers hold. */
#define MUCH (64 << 20)

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	char *room = malloc(16), answer[4];
	int peer, fd;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	REFUSES_STRANGE(mp_unregister(handle));
	/* What pends is cancelled and never surfaces; the memory is ours again. */
	CHECK(mp_read(handle, room, 16) > 0);
	EQUAL(mp_flush(channel), 0);
	fd = mp_unregister(handle);
	CHECK(fd >= 0);
	free(room);
	EQUAL(mp_unregister(handle), -EBADF);
	no_event(channel);

	/* No read of the channel takes what comes now. */
	EQUAL(write(peer, "mine", 4), 4);
	no_event(channel);
	read_all(fd, answer, 4);
	EQUAL(memcmp(answer, "mine", 4), 0);

	/* The descriptor can be registered again. */
	handle = mp_register(channel, fd, NULL, NULL, 0);
	CHECK(handle > 0);
	CHECK(mp_write(handle, "back", 4) > 0);
	EQUAL(next_event(channel).size, 4);
	read_all(peer, answer, 4);

	/* Queued writes go out first, and hold the file back while there is no room for them. */
	CHECK(mp_write_quiet(handle, "last", 4) == 0);
	EQUAL(mp_unregister(handle), fd);
	read_all(peer, answer, 4);
	EQUAL(memcmp(answer, "last", 4), 0);
	handle = mp_register(channel, fd, NULL, NULL, 0);
	room = calloc(1, MUCH);
	CHECK(mp_write(handle, room, MUCH) > 0);
	EQUAL(mp_unregister(handle), -EAGAIN);
	no_event(channel);
	EQUAL(mp_reset(handle), 0);
	free(room);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
