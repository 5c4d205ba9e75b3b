/* What the programs about receivers share. */
#include "test.h"

#include <megapipe_mmsg.h>

static inline mp_receiver *make_receiver(const struct mp_receiver_config *config)
{
	mp_receiver *receiver = NULL;

	EQUAL(mp_receiver_create(config, &receiver), 0);
	CHECK(receiver != NULL);
	return receiver;
}

/* A registered UDP socket, and one that sends to it. */
static inline int64_t udp_of(mp_receiver *receiver, void *cookie, int *sender)
{
	struct sockaddr_in addr, other;
	int64_t socket = mp_receiver_add(receiver, bound_socket(SOCK_DGRAM, 0, &addr), cookie);

	CHECK(socket > 0);
	*sender = bound_socket(SOCK_DGRAM, 0, &other);
	EQUAL(connect(*sender, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return socket;
}

/* The same for datagrams that are there when they have been sent. */
static inline int64_t unix_of(mp_receiver *receiver, void *cookie, int *sender)
{
	int64_t socket;
	int ends[2];

	EQUAL(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
	socket = mp_receiver_add(receiver, ends[0], cookie);
	CHECK(socket > 0);
	*sender = ends[1];
	return socket;
}

/* Waits on where a wait is interrupted. */
static inline int wait_on(mp_receiver *receiver, struct mp_message *messages, int most, int64_t timeout)
{
	int count;

	do
		count = mp_receiver_wait(receiver, messages, most, timeout);
	while (count == -EINTR);
	return count;
}

/* The next message; there must be one. */
static inline struct mp_message next_message(mp_receiver *receiver)
{
	struct mp_message message;

	EQUAL(wait_on(receiver, &message, 1, 20 * SECOND), 1);
	return message;
}
