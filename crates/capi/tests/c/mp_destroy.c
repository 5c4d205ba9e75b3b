#include "test.h"

/* What waits at a listener stays there, though lent memory has to be taken back first. */
static void waiting_connections_stay(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr;
	int listener = listening_socket(&addr), peers[3], peer;
	char room[8];
	const char *disabled = getenv("MEGAPIPE_DISABLE");
	mp_handle handle;

	if (strcmp(mp_engine_name(channel), "uring") == 0 && disabled && strstr(disabled, "defer_taskrun"))
		SKIP("without IORING_SETUP_DEFER_TASKRUN any system call runs accepts");
	CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
	handle = mp_register(channel, dup(listener), NULL, NULL, 0);
	CHECK(mp_accept(handle, MP_UNLIMITED, MP_ACCEPT_LWSOCKET) > 0);
	handle = tcp_handle(channel, NULL, &peer);
	CHECK(mp_read(handle, room, sizeof(room)) > 0);
	EQUAL(mp_flush(channel), 0);
	for (int i = 0; i < 3; i++)
		peers[i] = connect_to(&addr);
	EQUAL(mp_destroy(channel), 0);
	for (int i = 0; i < 3; i++) {
		int accepted = accept(listener, NULL, NULL);

		CHECK(accepted >= 0);
		close(accepted);
		close(peers[i]);
	}
	close(peer);
	close(listener);
}

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct mp_event event;
	char answer[4], *room = malloc(100);
	mp_handle handle;
	int peer;

	handle = tcp_handle(channel, NULL, &peer);
	CHECK(mp_read(handle, room, 100) > 0);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_write_quiet(handle, "last", 4), 0);
	EQUAL(mp_destroy(channel), 0);
	/* The memory is ours again, and what was written has gone out before the end. */
	free(room);
	read_all(peer, answer, 4);
	EQUAL(memcmp(answer, "last", 4), 0);
	EQUAL(read(peer, answer, 1), 0);

	/* What is gone is refused. */
	EQUAL(mp_destroy(NULL), -EINVAL);
	EQUAL(mp_destroy(channel), -EBADF);
	EQUAL(mp_close(handle), -EBADF);
	EQUAL(mp_dispatch(channel, 0, &event), -EBADF);
	EQUAL(mp_wakeup(channel), -EBADF);

	waiting_connections_stay();
	return 0;
}
