#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr, nobody;
	const struct sockaddr *to = (struct sockaddr *)&addr;
	struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "/nowhere"};
	int listener = listening_socket(&addr), server, unused, cookie;
	struct mp_event event;
	mp_handle handle;
	char bytes[5];

	EQUAL(mp_connect_to(NULL, to, sizeof(addr), NULL), -EINVAL);
	EQUAL(mp_connect_to(channel, NULL, sizeof(addr), NULL), -EINVAL);
	EQUAL(mp_connect_to(channel, to, 1, NULL), -EINVAL);
	EQUAL(mp_connect_to(channel, (struct sockaddr *)&local, sizeof(local), NULL), -EAFNOSUPPORT);

	handle = mp_connect_to(channel, to, sizeof(addr), &cookie);
	CHECK(handle > 0);
	/* Written before the connection exists: it waits for it. */
	EQUAL(mp_write_quiet(handle, "early", 5), 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_CONNECT);
	EQUAL(event.size, 0);
	EQUAL(event.handle, handle);
	CHECK(event.cookie == &cookie);
	EQUAL(mp_flush(channel), 0);
	server = accept(listener, NULL, NULL);
	read_all(server, bytes, 5);
	EQUAL(memcmp(bytes, "early", 5), 0);

	/* A port that was free a moment ago, kept from others by being bound. */
	unused = bound_socket(SOCK_STREAM, 0, &nobody);
	CHECK(mp_connect_to(channel, (struct sockaddr *)&nobody, sizeof(nobody), NULL) > 0);
	EQUAL(next_event(channel).size, -ECONNREFUSED);
	close(unused);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
