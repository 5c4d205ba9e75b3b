/* Greets over HTTP/1.1, with a channel and a share of the listener for each thread.
 * Usage: http_hello [PORT [THREADS]] */
#define _GNU_SOURCE
#include <errno.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char end[] = "\r\n\r\n", answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
static int listener, threads;

/* A connection: how much of the blank line that ends a request was seen. */
struct connection {
	size_t seen;
};

static void received(mp_channel *channel, const struct mp_event *event)
{
	struct connection *connection = event->cookie;
	const char *at = event->buf, *stop = at + event->size;
	int failed = event->size <= 0;

	for (; !failed && at < stop; at++) {
		connection->seen = *at == end[connection->seen] ? connection->seen + 1 : *at == '\r';
		if (connection->seen == 4) {
			connection->seen = 0;
			failed = mp_write_quiet(event->handle, answer, sizeof(answer) - 1) < 0;
		}
	}
	if (event->buffer != 0)
		mp_buffer_release(channel, event->buffer);
	if (failed) {
		mp_close(event->handle);
		free(connection);
	}
}

static void accepted(mp_channel *channel, int lwsocket)
{
	struct connection *connection = calloc(1, sizeof(*connection));
	mp_handle handle = connection ? mp_register(channel, lwsocket, connection, NULL, 0) : -ENOMEM;

	if (handle > 0 && mp_read_stream(handle) > 0)
		return;
	if (handle > 0)
		mp_close(handle);
	else
		mp_lwsocket_close(channel, lwsocket);
	free(connection);
}

static void *serve(void *number)
{
	struct mp_event event;
	mp_channel *channel;
	mp_handle handle;
	cpu_set_t cpus;
	int status;

	CPU_ZERO(&cpus);
	for (long cpu = (long)number; cpu < CPU_SETSIZE; cpu += threads)
		CPU_SET(cpu, &cpus);
	if (mp_create(NULL, &channel) < 0)
		return NULL;
	handle = mp_register(channel, listener, NULL, &cpus, sizeof(cpus));
	if (handle < 0 || mp_accept(handle, MP_UNLIMITED, MP_ACCEPT_LWSOCKET) < 0)
		exit(1);
	/* A process that is stopped and resumed interrupts its waits. */
	while ((status = mp_dispatch(channel, MP_FOREVER, &event)) == 1 || status == -EINTR) {
		if (status == 1 && event.cmd == MP_ACCEPT && event.fd >= 0)
			accepted(channel, event.fd);
		else if (status == 1 && event.cmd == MP_READ)
			received(channel, &event);
	}
	mp_destroy(channel);
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	socklen_t len = sizeof(addr);
	int on = 1;

	addr.sin_port = htons((unsigned short)(argc > 1 ? atoi(argv[1]) : 8080));
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	threads = argc > 2 && atoi(argv[2]) > 0 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
	if (bind(listener, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(listener, 1024) != 0)
		return perror("listen"), 1;
	getsockname(listener, (struct sockaddr *)&addr, &len);
	printf("port %d\n", ntohs(addr.sin_port));
	fflush(stdout);
	for (long i = 1; i < threads; i++)
		pthread_create(&(pthread_t){0}, NULL, serve, (void *)i);
	serve(0);
	return 0;
}
