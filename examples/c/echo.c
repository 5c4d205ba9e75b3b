/* An echo server: what a client sends comes back. Usage: echo [PORT] */
#include <megapipe.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static int listen_on(int port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
	socklen_t len = sizeof(addr);
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, 1024) != 0) {
		perror("listen");
		exit(1);
	}
	getsockname(fd, (struct sockaddr *)&addr, &len);
	printf("port %d\n", ntohs(addr.sin_port));
	fflush(stdout);
	return fd;
}

static void accepted(mp_channel *channel, const struct mp_event *event)
{
	mp_handle connection;

	if (event->fd < 0) {
		fprintf(stderr, "accept: %s\n", strerror((int)-event->size));
		return;
	}
	connection = mp_register(channel, event->fd, NULL, NULL, 0);
	if (connection < 0)
		mp_lwsocket_close(channel, event->fd);
	else if (mp_read_stream(connection) < 0)
		mp_close(connection);
}

static void received(mp_channel *channel, const struct mp_event *event)
{
	if (event->size <= 0) {
		mp_close(event->handle); /* the end, or an error; answers still go out */
	} else if (mp_write_buffer(event->handle, event->buffer) < 0) {
		mp_buffer_release(channel, event->buffer);
		mp_reset(event->handle); /* it sends and sends, and does not read */
	}
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	mp_channel *channel;
	mp_handle listener;
	struct mp_event event;
	int status = mp_create(NULL, &channel);

	if (status < 0) {
		fprintf(stderr, "mp_create: %s\n", strerror(-status));
		return 1;
	}
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	listener = mp_register(channel, listen_on(argc > 1 ? atoi(argv[1]) : 7777), NULL, NULL, 0);
	if (listener < 0 || mp_accept(listener, MP_UNLIMITED, 1) < 0)
		return 1;
	while (!stop) {
		/* a signal that comes while nothing waits ends no wait: look at `stop` now and then */
		status = mp_dispatch(channel, 100000000, &event);
		if (status == 0 || status == -EINTR)
			continue;
		if (status < 0)
			break;
		if (event.cmd == MP_ACCEPT)
			accepted(channel, &event);
		else if (event.cmd == MP_READ)
			received(channel, &event);
		else if (event.cmd == MP_WRITE) /* a quiet write that failed */
			mp_close(event.handle);
	}
	mp_destroy(channel);
	return 0;
}
