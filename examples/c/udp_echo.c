/* A UDP echo server: each datagram goes back to its sender. Usage: udp_echo [PORT] */
#include <errno.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pool buffers of answers on their way. Writes of a handle end in their order. */
static uint32_t on_the_way[1024];
static unsigned int first, last;

static void received(mp_channel *channel, const struct mp_event *event)
{
	if (!event->more) /* an error ended it */
		mp_read_stream(event->handle);
	if (event->buffer == 0)
		return;
	if (mp_sendto(event->handle, event->buf, (size_t)event->size, event->addr, event->addrlen) < 0)
		mp_buffer_release(channel, event->buffer);
	else
		on_the_way[last++ % 1024] = event->buffer;
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	int status, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(addr);
	struct mp_event event;
	mp_channel *channel;
	mp_handle socket_handle;

	addr.sin_port = htons((unsigned short)(argc > 1 ? atoi(argv[1]) : 7777));
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
		perror("bind");
		return 1;
	}
	getsockname(fd, (struct sockaddr *)&addr, &len);
	printf("port %d\n", ntohs(addr.sin_port));
	fflush(stdout);
	status = mp_create(NULL, &channel);
	if (status < 0) {
		fprintf(stderr, "mp_create: %s\n", strerror(-status));
		return 1;
	}
	socket_handle = mp_register(channel, fd, NULL, NULL, 0);
	if (socket_handle < 0 || mp_read_stream(socket_handle) < 0)
		return 1;
	while ((status = mp_dispatch(channel, MP_FOREVER, &event)) >= 0 || status == -EINTR) {
		if (status <= 0)
			continue; /* stopped and resumed, say */
		if (event.cmd == MP_READ)
			received(channel, &event);
		else if (event.cmd == MP_WRITE)
			mp_buffer_release(channel, on_the_way[first++ % 1024]);
	}
	mp_destroy(channel);
	return 1;
}
