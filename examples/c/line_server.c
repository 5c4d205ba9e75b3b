/* A server that answers each line with the line in upper case. Usage: line_server [PORT [IDLE_SECONDS]]
 * A client that for so long (or twice) sends no whole line and takes no answer is disconnected. On SIGTERM the server
 * accepts and answers no more, and ends when its clients have taken their answers. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/signalfd.h>

#define SIZE 4096 /* of a line, at most */

/* It is read from or written to, in turns: one that does not take its answer is not read from, and needs no more memory. */
static LIST_HEAD(, client) clients;
struct client {
	LIST_ENTRY(client) place;
	mp_handle handle;
	int active, finishing;
	size_t used;
	char line[SIZE], answer[SIZE];
};

static void drop(struct client *client, int (*close_or_reset)(mp_handle))
{
	close_or_reset(client->handle); /* the channel lets go of the memory */
	LIST_REMOVE(client, place);
	free(client);
}

/* Goes on with a client; 0: it is to be closed. */
static int serve(struct client *client, const struct mp_event *event)
{
	char *end = NULL;
	size_t size;

	if (event->size <= 0 && event->cmd != MP_ACCEPT) /* an error, its end, or ours: then it is read up to its own */
		return event->size == 0 && event->cmd == MP_DISCONNECT;
	if (event->cmd == MP_READ && !client->finishing) {
		client->used += (size_t)event->size;
		end = memrchr(client->line, '\n', client->used);
	}
	client->active |= end || event->cmd == MP_WRITE;
	if (!end) /* of a full line nothing is read, which is refused */
		return mp_read(client->handle, client->line + client->used, SIZE - client->used) > 0;
	size = (size_t)(end + 1 - client->line);
	for (size_t i = 0; i < size; i++)
		client->answer[i] = (char)toupper((unsigned char)client->line[i]);
	memmove(client->line, end + 1, client->used -= size);
	return mp_write(client->handle, client->answer, size) > 0;
}

static void accepted(mp_channel *channel, const struct mp_event *event)
{
	struct client *client = calloc(1, sizeof(*client));
	mp_handle handle = client ? mp_register(channel, event->fd, client, NULL, 0) : -ENOMEM;

	if (handle < 0) { /* such as no descriptors: accepting pauses, and goes on by itself */
		fprintf(stderr, "accept: %s\n", strerror((int)-(event->fd < 0 ? event->size : handle)));
		mp_lwsocket_close(channel, event->fd);
		if (!event->more)
			exit(1); /* it does not */
		free(client);
		return;
	}
	client->handle = handle;
	client->active = 1;
	LIST_INSERT_HEAD(&clients, client, place);
	if (!serve(client, event))
		drop(client, mp_close);
}

int main(int argc, char **argv)
{
	int port = argc > 1 ? atoi(argv[1]) : 7777, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in addr = {AF_INET, htons((uint16_t)port), {htonl(INADDR_LOOPBACK)}, {0}};
	int64_t idle = (argc > 2 ? atoi(argv[2]) : 60) * INT64_C(1000000000);
	int status, stopping = 0;
	socklen_t len = sizeof(addr);
	struct client *client, *next;
	mp_handle listener, signals;
	struct mp_event event;
	mp_channel *channel;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (bind(fd, (struct sockaddr *)&addr, len) != 0 || listen(fd, 1024) != 0 || mp_create(NULL, &channel) < 0)
		return perror("listen"), 1;
	getsockname(fd, (struct sockaddr *)&addr, &len);
	dprintf(1, "port %d\n", ntohs(addr.sin_port));
	listener = mp_register(channel, fd, NULL, NULL, 0);
	signals = mp_register(channel, signalfd(-1, &set, SFD_CLOEXEC), NULL, NULL, 0);
	if (mp_accept(listener, MP_UNLIMITED, MP_ACCEPT_LWSOCKET) < 0 || mp_read_buffer(signals) < 0 || mp_timer(channel, idle, &clients) < 0)
		return 1;
	while ((status = mp_dispatch(channel, MP_FOREVER, &event)) >= 0 || status == -EINTR) {
		if (status > 0 && event.handle == signals) {
			stopping = mp_close(listener) == 0 && mp_timer(channel, INT64_C(5000000000), NULL) > 0;
			LIST_FOREACH(client, &clients, place)
				client->finishing = mp_shutdown(client->handle, SHUT_WR) > 0; /* behind its answer */
		} else if (status > 0 && event.cmd == MP_TIMER && event.cookie == &clients) {
			for (client = LIST_FIRST(&clients); client && (next = LIST_NEXT(client, place), 1); client = next)
				if (!client->active--)
					drop(client, mp_reset); /* a close would wait for its answer */
			mp_timer(channel, idle, &clients);
		} else if (status > 0 && event.cmd == MP_ACCEPT)
			accepted(channel, &event);
		else if (status > 0 && event.cmd != MP_TIMER && !serve(event.cookie, &event))
			drop(event.cookie, mp_close);
		if (stopping && (LIST_EMPTY(&clients) || (status > 0 && event.cmd == MP_TIMER && event.cookie == NULL)))
			break;
	}
	return mp_destroy(channel) < 0 || status < 0;
}
