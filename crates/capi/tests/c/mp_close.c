#include "test.h"

#define SIZE (1 << 20)

static char *map(size_t size)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

/* Writes larger than the socket buffers, closed at once: all of it arrives, though its
 * memory is gone as soon as mp_close() has returned. */
static void read_to_end(int fd)
{
	static unsigned char room[1 << 16];
	size_t total = 0;
	ssize_t count;

	while ((count = read(fd, room, sizeof(room))) > 0) {
		for (ssize_t i = 0; i < count; i++, total++)
			if (room[i] != ((total * 7) & 0xff))
				EQUAL(total, -1);
	}
	EQUAL(count, 0);
	EQUAL(total, SIZE);
	exit(0);
}

static void close_with_writes(mp_channel *channel, int flushed)
{
	int peer, status = -1, room = 1 << 14;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	char *memory = map(SIZE);
	struct mp_event event;
	pid_t reader;

	EQUAL(mp_setsockopt(handle, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
	EQUAL(setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
	for (size_t i = 0; i < SIZE; i++)
		memory[i] = (char)(i * 7);
	CHECK(mp_write(handle, memory, SIZE / 2) > 0);
	CHECK(mp_write(handle, memory + SIZE / 2, SIZE / 2) > 0);
	if (flushed) {
		EQUAL(mp_flush(channel), 0);
		EQUAL(mp_dispatch(channel, 0, &event), 0);
	}
	EQUAL(mp_close(handle), 0);
	EQUAL(munmap(memory, SIZE), 0);
	reader = fork();
	if (reader == 0) {
		/* The child's copy of our end must not keep the connection open. */
		EQUAL(mp_destroy(channel), 0);
		read_to_end(peer);
	}
	while (waitpid(reader, &status, WNOHANG) == 0)
		EQUAL(mp_dispatch(channel, SECOND / 100, &event), 0);
	EQUAL(status, 0);
	close(peer);
}

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	char *room = map(4096), byte;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	REFUSES_STRANGE(mp_close(handle));
	for (int i = 0; i < 4; i++)
		CHECK(mp_read(handle, room + i, 1) > 0);
	EQUAL(mp_flush(channel), 0);
	EQUAL(mp_close(handle), 0);
	EQUAL(munmap(room, 4096), 0);
	EQUAL(mp_close(handle), -EBADF);
	EQUAL(mp_write_quiet(handle, "x", 1), -EBADF);
	no_event(channel);
	EQUAL(read(peer, &byte, 1), 0);
	close(peer);

	close_with_writes(channel, 0);
	close_with_writes(channel, 1);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
