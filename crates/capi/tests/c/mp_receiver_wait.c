#include "receiver.h"

#include <limits.h>

int main(void)
{
	mp_receiver *receiver = make_receiver(NULL);
	struct mp_message messages[8], message;
	int senders[4], ends[2], total = 0;

	EQUAL(wait_on(receiver, messages, 8, 0), 0);
	EQUAL(wait_on(receiver, messages, 8, 1000), 0);
	EQUAL(mp_receiver_wait(receiver, NULL, 8, 0), -EINVAL);
	EQUAL(wait_on(receiver, messages, 0, 0), -EINVAL);
	EQUAL(mp_receiver_wait(NULL, messages, 8, 0), -EBADF);

	/* Each socket has one message before one of them has a second. */
	for (intptr_t i = 0; i < 4; i++) {
		unix_of(receiver, (void *)i, &senders[i]);
		for (int j = 0; j < 3; j++)
			EQUAL(send(senders[i], &j, sizeof(j), 0), sizeof(j));
	}
	for (int j = 0; j < 3; j++) {
		int seen = 0;

		EQUAL(wait_on(receiver, messages, 4, 20 * SECOND), 4);
		for (int i = 0; i < 4; i++) {
			EQUAL(memcmp(messages[i].buf, &j, sizeof(j)), 0);
			EQUAL(messages[i].size, sizeof(j));
			EQUAL(messages[i].length, sizeof(j));
			CHECK(messages[i].addr == NULL);
			seen |= 1 << (intptr_t)messages[i].cookie;
		}
		EQUAL(seen, 15);
	}

	/* What there is counts, not what is asked for. */
	EQUAL(send(senders[0], "one", 3, 0), 3);
	EQUAL(wait_on(receiver, messages, INT_MAX, 20 * SECOND), 1);
	EQUAL(messages[0].size, 3);

	/* A stream tells its end once. */
	tcp_pair(ends);
	CHECK(mp_receiver_add(receiver, ends[0], NULL) > 0);
	EQUAL(send(ends[1], "stream", 6, 0), 6);
	close(ends[1]);
	do {
		message = next_message(receiver);
		CHECK(message.size >= 0);
		total += message.size;
	} while (message.buf != NULL);
	EQUAL(total, 6);
	EQUAL(wait_on(receiver, messages, 8, 1000000), 0);
	EQUAL(mp_receiver_destroy(receiver), 0);
	return 0;
}
