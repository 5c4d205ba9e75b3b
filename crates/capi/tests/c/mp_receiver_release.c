#include "receiver.h"

int main(void)
{
	struct mp_receiver_config config = { .size = sizeof(config), .buffers = 1 };
	mp_receiver *receiver = make_receiver(&config);
	struct mp_message message;
	int sender;

	udp_of(receiver, NULL, &sender);
	EQUAL(mp_receiver_release(receiver, NULL), -EINVAL);
	EQUAL(mp_receiver_release(receiver, &message), -EINVAL);
	/* A buffer that is kept and released serves again, any number of times; one without bytes, too. */
	for (int i = 0; i < 10; i++) {
		EQUAL(send(sender, "xyz", (size_t)(i % 4), 0), i % 4);
		message = next_message(receiver);
		EQUAL(message.size, i % 4);
		EQUAL(mp_receiver_release(receiver, message.buf), -EINVAL);
		EQUAL(mp_receiver_keep(receiver, 0), 0);
		EQUAL(wait_on(receiver, &message, 1, 0), -ENOBUFS);
		EQUAL(mp_receiver_release(NULL, message.buf), -EBADF);
		EQUAL(mp_receiver_release(receiver, message.buf), 0);
		EQUAL(mp_receiver_release(receiver, message.buf), -EINVAL);
	}
	EQUAL(wait_on(receiver, &message, 1, 0), 0);
	EQUAL(mp_receiver_destroy(receiver), 0);
	return 0;
}
