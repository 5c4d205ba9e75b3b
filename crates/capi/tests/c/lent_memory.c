#include "test.h"

#define CONNECTIONS 32
#define ROUNDS 40
#define READ_SIZE 512
#define WRITE_SIZE 200000

struct connection {
	mp_handle handle;
	int peer;
	size_t written;  /* bytes given to writes */
	int talks;       /* the peer sends: TCP then answers a close with RST */
	unsigned char *room, *data;
};

static uint32_t seed = 1;

/* The same sequence on every run. */
static uint32_t pseudo_random(uint32_t bound)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % bound;
}

static unsigned char expected(size_t at)
{
	return (unsigned char)(at * 31 >> 3);
}

static void open_connection(mp_channel *channel, struct connection *connection)
{
	connection->handle = tcp_handle(channel, connection, &connection->peer);
	connection->written = 0;
	connection->talks = (int)pseudo_random(2);
	connection->room = malloc(READ_SIZE);
	connection->data = malloc(WRITE_SIZE);
	CHECK(connection->room != NULL && connection->data != NULL);
	for (size_t i = 0; i < WRITE_SIZE; i++)
		connection->data[i] = expected(i);
	for (int i = 0; i < READ_SIZE / 128; i++)
		CHECK(mp_read(connection->handle, connection->room + i * 128, 128) > 0);
}

static void do_something(mp_channel *channel, struct connection *connection)
{
	struct mp_event event;
	size_t size;

	switch (pseudo_random(4)) {
	case 0:
		if (!connection->talks)
			break;
		CHECK(send(connection->peer, "some bytes", 10, MSG_DONTWAIT) == 10);
		break;
	case 1:
		size = 1 + pseudo_random(WRITE_SIZE / 4);
		if (connection->written + size > WRITE_SIZE)
			break;
		CHECK(mp_write(connection->handle, connection->data + connection->written, size) > 0);
		connection->written += size;
		break;
	case 2:
		CHECK(mp_flush(channel) == 0);
		break;
	default:
		CHECK(mp_dispatch(channel, 0, &event) >= 0);
		break;
	}
}

/* Takes the memory back and makes sure that nobody else uses it. */
static void close_connection(mp_channel *channel, struct connection *connection)
{
	unsigned char *data = malloc(WRITE_SIZE);
	struct mp_event event;
	size_t got = 0;

	EQUAL(mp_close(connection->handle), 0);
	memset(connection->room, 0xaa, READ_SIZE);
	memset(connection->data, 0xaa, WRITE_SIZE);
	if (connection->talks)
		send(connection->peer, "too late", 8, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (got < connection->written) {
		ssize_t count = recv(connection->peer, data + got, WRITE_SIZE - got, MSG_DONTWAIT);

		if (connection->talks && (count == 0 || (count < 0 && errno == ECONNRESET)))
			break;
		CHECK(count > 0 || (count < 0 && errno == EAGAIN));
		if (count > 0)
			got += (size_t)count;
		CHECK(mp_dispatch(channel, 0, &event) >= 0);
	}
	for (size_t i = 0; i < got; i++)
		if (data[i] != expected(i))
			EQUAL(i, -1);
	for (size_t i = 0; i < READ_SIZE; i++)
		EQUAL(connection->room[i], 0xaa);
	close(connection->peer);
	free(connection->room);
	free(connection->data);
	free(data);
}

/* Closes with reads and writes in any state: no byte is lost, and none is read from or
 * written to memory that was taken back. */
int main(void)
{
	static struct connection connections[CONNECTIONS];
	mp_channel *channel = make_channel(NULL);

	for (int i = 0; i < CONNECTIONS; i++)
		open_connection(channel, &connections[i]);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 4 * CONNECTIONS; i++)
			do_something(channel, &connections[pseudo_random(CONNECTIONS)]);
		for (int i = 0; i < CONNECTIONS / 4; i++) {
			struct connection *connection = &connections[pseudo_random(CONNECTIONS)];

			close_connection(channel, connection);
			open_connection(channel, connection);
		}
	}
	for (int i = 0; i < CONNECTIONS; i++)
		close_connection(channel, &connections[i]);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
