#include "test.h"

/* Where the parent has its ring, the child has nothing: what it maps may come to lie there. */
enum { MAPPINGS = 64, MAPPING = 32 << 10 };

static void map_memory(char *mappings[MAPPINGS])
{
	for (int i = 0; i < MAPPINGS; i++) {
		mappings[i] = mmap(NULL, MAPPING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(mappings[i] != MAP_FAILED);
		memset(mappings[i], i, MAPPING);
	}
}

static void check_memory(char *mappings[MAPPINGS])
{
	unsigned char resident[MAPPING / 4096];

	for (int i = 0; i < MAPPINGS; i++) {
		EQUAL(mincore(mappings[i], MAPPING, resident), 0);
		EQUAL(mappings[i][MAPPING - 1], i);
	}
}

/* A child has the parent's channel only to destroy its copy; the parent's goes on, its
 * listener included. */
static void child(mp_channel *channel, mp_handle handle)
{
	struct mp_event event;
	char *mappings[MAPPINGS];
	mp_channel *own;

	map_memory(mappings);
	EQUAL(mp_dispatch(channel, 0, &event), -MP_EFORKED);
	EQUAL(mp_write_quiet(handle, "x", 1), -MP_EFORKED);
	EQUAL(mp_close(handle), -MP_EFORKED);
	EQUAL(mp_unregister(handle), -MP_EFORKED);
	EQUAL(mp_register(channel, 0, NULL, NULL, 0), -MP_EFORKED);
	EQUAL(mp_wakeup(channel), -MP_EFORKED);
	EQUAL(mp_destroy(channel), 0);
	check_memory(mappings);
	EQUAL(mp_close(handle), -EBADF);
	own = make_channel(NULL);
	EQUAL(mp_dispatch(own, 0, &event), 0);
	EQUAL(mp_destroy(own), 0);
	exit(0);
}

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr;
	struct mp_event event;
	char room[4], byte;
	int peer, status, listener = bound_socket(SOCK_STREAM, 1, &addr);
	mp_handle handle = tcp_handle(channel, NULL, &peer), listening;
	cpu_set_t mask;

	CPU_ZERO(&mask);
	CPU_SET(0, &mask);
	listening = mp_register(channel, listener, NULL, &mask, sizeof(mask));
	CHECK(listening > 0);
	CHECK(mp_accept(listening, MP_UNLIMITED, 1) > 0);
	CHECK(mp_read(handle, room, sizeof(room)) > 0);
	EQUAL(mp_write_quiet(handle, "p", 1), 0);

	for (int destroys = 0; destroys < 2; destroys++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			if (destroys)
				child(channel, handle);
			exit(0);
		}
		EQUAL(waitpid(pid, &status, 0), pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}

	EQUAL(mp_flush(channel), 0);
	read_all(peer, &byte, 1);
	EQUAL(byte, 'p');
	EQUAL(write(peer, "goes", 4), 4);
	event = next_event(channel);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.size, 4);
	close(connect_to(&addr));
	EQUAL(next_event(channel).cmd, MP_ACCEPT);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
