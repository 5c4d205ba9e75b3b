#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr, from;
	struct mp_event event;
	size_t total = 0;
	int peer, sender;
	mp_handle handle = tcp_handle(channel, NULL, &peer);
	mp_op op = mp_read_stream(handle);
	static char bytes[100000];

	CHECK(op > 0);
	REFUSES_STRANGE(mp_read_stream(handle));
	EQUAL(write(peer, bytes, sizeof(bytes)), sizeof(bytes));
	close(peer);
	for (;;) {
		event = next_event(channel);
		EQUAL(event.cmd, MP_READ);
		EQUAL(event.op, op);
		if (event.size == 0)
			break;
		CHECK(event.size > 0 && event.buffer != 0);
		EQUAL(event.more, 1);
		CHECK(event.addr == NULL);
		EQUAL(mp_buffer_release(channel, event.buffer), 0);
		total += (size_t)event.size;
	}
	EQUAL(event.more, 0);
	EQUAL(event.buffer, 0);
	EQUAL(total, sizeof(bytes));

	/* A datagram names its sender, also when it is empty. */
	handle = mp_register(channel, bound_socket(SOCK_DGRAM, 0, &addr), NULL, NULL, 0);
	sender = bound_socket(SOCK_DGRAM, 0, &from);
	CHECK(mp_read_stream(handle) > 0);
	for (size_t size = 0; size < 10; size += 5) {
		EQUAL(sendto(sender, "datagram", size, 0, (struct sockaddr *)&addr, sizeof(addr)), size);
		event = next_event(channel);
		EQUAL(event.size, size);
		EQUAL(event.more, 1);
		EQUAL(event.truncated, 0);
		EQUAL(event.addrlen, sizeof(from));
		EQUAL(memcmp(event.addr, &from, sizeof(from)), 0);
		EQUAL(memcmp(event.buf, "datagram", size), 0);
		EQUAL(mp_buffer_release(channel, event.buffer), 0);
	}
	/* One that does not fit is cut, and says so. */
	EQUAL(sendto(sender, bytes, 30000, 0, (struct sockaddr *)&addr, sizeof(addr)), 30000);
	event = next_event(channel);
	EQUAL(event.truncated, 1);
	CHECK(event.size > 0 && event.size < 30000);
	EQUAL(mp_buffer_release(channel, event.buffer), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
