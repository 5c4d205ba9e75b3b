#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr *any = (struct sockaddr *)&addr;
	struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "/nowhere"};
	socklen_t len = sizeof(addr);
	struct mp_event event;
	mp_handle listener;
	char byte = 0;
	int client, cookie;

	EQUAL(mp_listen_on(NULL, any, sizeof(addr), 8, NULL), -EINVAL);
	EQUAL(mp_listen_on(channel, NULL, sizeof(addr), 8, NULL), -EINVAL);
	EQUAL(mp_listen_on(channel, any, 1, 8, NULL), -EINVAL);
	EQUAL(mp_listen_on(channel, any, sizeof(addr), -1, NULL), -EINVAL);
	EQUAL(mp_listen_on(channel, (struct sockaddr *)&local, sizeof(local), 8, NULL), -EAFNOSUPPORT);

	listener = mp_listen_on(channel, any, sizeof(addr), 8, &cookie);
	CHECK(listener > 0);
	EQUAL(mp_getsockname(listener, any, &len), 0);
	EQUAL(len, sizeof(addr));
	EQUAL(mp_listen_on(channel, any, sizeof(addr), 8, NULL), -EADDRINUSE);

	CHECK(mp_accept(listener, 1, 0) > 0);
	EQUAL(mp_flush(channel), 0);
	client = socket(AF_INET, SOCK_STREAM, 0);
	EQUAL(connect(client, any, sizeof(addr)), 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_ACCEPT);
	CHECK(event.cookie == &cookie);
	CHECK(event.fd >= 0);
	EQUAL(write(client, "x", 1), 1);
	read_all(event.fd, &byte, 1);
	EQUAL(byte, 'x');
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
