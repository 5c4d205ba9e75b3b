#include "test.h"

/* A thread that ends with its channel still there: the kernel writes no more into the
 * thread's memory, and the peers hear of the end. */
static void *forgetful(void *peer)
{
	mp_channel *channel = make_channel(NULL);
	char on_stack[64];
	mp_handle handle = tcp_handle(channel, NULL, peer);

	CHECK(mp_read(handle, on_stack, sizeof(on_stack)) > 0);
	EQUAL(mp_flush(channel), 0);
	return channel;
}

int main(void)
{
	pthread_t thread;
	void *channel;
	char byte;
	int peer;

	EQUAL(pthread_create(&thread, NULL, forgetful, &peer), 0);
	EQUAL(pthread_join(thread, &channel), 0);
	EQUAL(mp_destroy(channel), -EBADF);
	EQUAL(mp_wakeup(channel), -EBADF);
	EQUAL(read(peer, &byte, 1), 0);
	return 0;
}
