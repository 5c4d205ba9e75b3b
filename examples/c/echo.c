/* An echo server: what a client sends comes back. Usage: echo [PORT] */
#include <errno.h>
#include <err.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 4096

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
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, 1024) != 0)
		err(1, "listen");
	getsockname(fd, (struct sockaddr *)&addr, &len);
	printf("port %d\n", ntohs(addr.sin_port));
	fflush(stdout);
	return fd;
}

static void end(mp_handle connection, void *memory)
{
	mp_close(connection);
	free(memory); /* the channel has let go of it */
}

/* A connection's memory is its cookie: what was read into it is written from it, in turns. */
static void accepted(mp_channel *channel, const struct mp_event *event)
{
	void *memory = malloc(SIZE);
	mp_handle connection = mp_register(channel, event->fd, memory, NULL, 0);

	if (connection < 0) {
		fprintf(stderr, "accept: %s\n", strerror((int)-(event->fd < 0 ? event->size : connection)));
		mp_lwsocket_close(channel, event->fd);
	}
	if (connection < 0 || mp_read(connection, memory, SIZE) < 0)
		end(connection, memory);
}

static void read_or_written(const struct mp_event *event)
{
	mp_op next = event->size; /* 0 at the end, or an error */

	if (event->size > 0 && event->cmd == MP_READ)
		next = mp_write(event->handle, event->cookie, (size_t)event->size);
	else if (event->size > 0) /* a client that does not read makes only itself wait */
		next = mp_read(event->handle, event->cookie, SIZE);
	if (next <= 0)
		end(event->handle, event->cookie);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	mp_channel *channel;
	mp_handle listener;
	struct mp_event event;
	int status = mp_create(NULL, &channel);

	if (status < 0)
		errx(1, "mp_create: %s", strerror(-status));
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	listener = mp_register(channel, listen_on(argc > 1 ? atoi(argv[1]) : 7777), NULL, NULL, 0);
	if (listener < 0 || mp_accept(listener, MP_UNLIMITED, MP_ACCEPT_LWSOCKET) < 0)
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
		else
			read_or_written(&event);
	}
	mp_destroy(channel);
	return 0;
}
