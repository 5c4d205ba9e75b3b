#include "test.h"

/* Counts what the library and we allocate: glibc lets a program replace these. */
static long allocations;
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *at, size_t size);

void *malloc(size_t size)
{
	allocations++;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocations++;
	return __libc_calloc(count, size);
}

void *realloc(void *at, size_t size)
{
	allocations++;
	return __libc_realloc(at, size);
}

/* One message there and back, by pool buffers. */
static void transact_by_pool(mp_channel *channel, int peer)
{
	struct mp_event event;
	char answer[64];

	EQUAL(write(peer, answer, sizeof(answer)), sizeof(answer));
	event = next_event(channel);
	EQUAL(event.size, sizeof(answer));
	EQUAL(mp_write_buffer(event.handle, event.buffer), 0);
	EQUAL(mp_write_quiet(event.handle, answer, sizeof(answer)), 0);
	EQUAL(mp_flush(channel), 0);
	read_all(peer, answer, sizeof(answer));
	read_all(peer, answer, sizeof(answer));
}

/* The same in our memory. */
static void transact_by_memory(mp_channel *channel, mp_handle handle, int peer)
{
	char room[64], answer[64];

	CHECK(mp_read(handle, room, sizeof(room)) > 0);
	EQUAL(write(peer, answer, sizeof(answer)), sizeof(answer));
	EQUAL(next_event(channel).size, sizeof(room));
	CHECK(mp_write(handle, room, sizeof(room)) > 0);
	EQUAL(next_event(channel).size, sizeof(room));
	read_all(peer, answer, sizeof(answer));
}

/* The data path allocates nothing. */
int main(void)
{
	mp_channel *channel = make_channel(NULL);
	int peer, other_peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	mp_handle other = tcp_handle(channel, NULL, &other_peer);
	long before = 0;

	CHECK(mp_read_stream(handle) > 0);
	for (int i = 0; i < 3000; i++) {
		/* By then every table has its size. */
		if (i == 1000)
			before = allocations;
		transact_by_pool(channel, peer);
		transact_by_memory(channel, other, other_peer);
	}
	CHECK(before > 0);
	EQUAL(allocations - before, 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
