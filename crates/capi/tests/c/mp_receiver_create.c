#include "receiver.h"

int main(void)
{
	struct mp_receiver_config config = { .size = sizeof(config), .buffers = 4, .buffer_size = 8 };
	mp_receiver *receiver;
	struct mp_message message;
	int sender;

	EQUAL(mp_receiver_create(NULL, NULL), -EINVAL);
	config.flags = 1u << 31;
	EQUAL(mp_receiver_create(&config, &receiver), -EINVAL);
	config.flags = MP_RECEIVER_ADDRESSES;
	config.size = 4;
	EQUAL(mp_receiver_create(&config, &receiver), -EINVAL);
	config.size = sizeof(config);
	config.sockets = 1u << 30;
	EQUAL(mp_receiver_create(&config, &receiver), -EINVAL);
	config.sockets = 2;

	receiver = make_receiver(&config);
	udp_of(receiver, NULL, &sender);
	EQUAL(send(sender, "longer than eight", 17, 0), 17);
	message = next_message(receiver);
	EQUAL(message.size, 8);
	EQUAL(message.length, 17);
	CHECK(message.addr != NULL && message.addrlen == sizeof(struct sockaddr_in));
	EQUAL(mp_receiver_destroy(receiver), 0);
	EQUAL(mp_receiver_destroy(make_receiver(NULL)), 0);
	return 0;
}
