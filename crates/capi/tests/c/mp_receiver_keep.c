#include "receiver.h"

/* Takes two messages of one byte each and returns their data. */
static void take_two(mp_receiver *receiver, int sender, char first, const char *bufs[2])
{
	struct mp_message messages[2];

	for (int i = 0; i < 2; i++) {
		char byte = (char)(first + i);

		EQUAL(send(sender, &byte, 1, 0), 1);
	}
	for (int taken = 0; taken < 2; taken++) {
		messages[0] = next_message(receiver);
		EQUAL(messages[0].size, 1);
		bufs[taken] = messages[0].buf;
		EQUAL(*bufs[taken], first + taken);
		EQUAL(mp_receiver_keep(receiver, 0), 0);
	}
}

int main(void)
{
	struct mp_receiver_config config = { .size = sizeof(config), .buffers = 2, .buffer_size = 64 };
	mp_receiver *receiver = make_receiver(&config);
	struct mp_message messages[4];
	const char *bufs[2];
	int sender, ends[2];

	unix_of(receiver, NULL, &sender);
	EQUAL(mp_receiver_keep(NULL, 0), -EBADF);
	EQUAL(mp_receiver_keep(receiver, 0), -EINVAL);
	EQUAL(mp_receiver_keep(receiver, -1), -EINVAL);

	/* All buffers are kept: what comes waits in the kernel. */
	take_two(receiver, sender, 'a', bufs);
	EQUAL(mp_receiver_keep(receiver, 0), -EINVAL);
	EQUAL(send(sender, "c", 1, 0), 1);
	EQUAL(wait_on(receiver, messages, 4, 20 * SECOND), -ENOBUFS);
	EQUAL(*bufs[0], 'a');
	EQUAL(*bufs[1], 'b');
	EQUAL(mp_receiver_release(receiver, bufs[1]), 0);
	messages[0] = next_message(receiver);
	EQUAL(*(const char *)messages[0].buf, 'c');
	EQUAL(*bufs[0], 'a');
	EQUAL(mp_receiver_keep(receiver, 1), -EINVAL);

	/* Two sockets in one batch: one message is kept, the other is there until the next wait. */
	EQUAL(mp_receiver_release(receiver, bufs[0]), 0);
	take_two(receiver, sender, 'd', bufs);
	EQUAL(mp_receiver_release(receiver, bufs[0]), 0);
	EQUAL(mp_receiver_release(receiver, bufs[1]), 0);
	unix_of(receiver, NULL, &ends[0]);
	EQUAL(send(sender, "1", 1, 0), 1);
	EQUAL(send(ends[0], "2", 1, 0), 1);
	EQUAL(wait_on(receiver, messages, 4, 20 * SECOND), 2);
	EQUAL(mp_receiver_keep(receiver, 1), 0);
	EQUAL(*(const char *)messages[0].buf + *(const char *)messages[1].buf, '1' + '2');
	EQUAL(wait_on(receiver, messages, 1, 0), 0);

	/* An end has no data to keep. */
	tcp_pair(ends);
	CHECK(mp_receiver_add(receiver, ends[0], NULL) > 0);
	close(ends[1]);
	CHECK(next_message(receiver).buf == NULL);
	EQUAL(mp_receiver_keep(receiver, 0), -EINVAL);
	/* What is kept goes with the receiver. */
	EQUAL(mp_receiver_destroy(receiver), 0);
	return 0;
}
