/* Answers GET /N with N bytes, over sockets of the kernel, a thread for each CPU.
 * Usage: http_sockets PORT [THREADS] */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/param.h>
#include <unistd.h>

#define CONNECTIONS 10000
#define EVENTS 256
#define THREADS 64

struct connection {
	char request[1024], header[128];
	size_t received, header_left, body_at, body_left;
	int last;
};

struct server {
	int epoll, listener;
	struct connection *connections;
};

static pthread_t threads[THREADS];
static int count;
static volatile sig_atomic_t stopping;
static unsigned short port;
static const char body[16384] = "hello\n";

static void stop(int signal)
{
	if (!stopping) {
		stopping = 1;
		for (int i = 0; i < count; i++)
			if (!pthread_equal(threads[i], pthread_self()))
				pthread_kill(threads[i], signal);
	}
}

static void watch(struct server *server, int fd, int operation, unsigned events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	epoll_ctl(server->epoll, operation, fd, &event);
}

/* Writes what is left. Returns 0 when it is done, and -1 when the connection is over. */
static int answer(int fd, struct connection *c)
{
	size_t at = strlen(c->header) - c->header_left;
	ssize_t n;

	while (c->header_left > 0) {
		n = write(fd, c->header + at, c->header_left);
		if (n < 0)
			return errno == EAGAIN ? 1 : -1;
		at += n;
		c->header_left -= n;
	}
	while (c->body_left > 0) {
		at = c->body_at % sizeof(body);
		n = write(fd, body + at, MIN(c->body_left, sizeof(body) - at));
		if (n < 0)
			return errno == EAGAIN ? 1 : -1;
		c->body_at += n;
		c->body_left -= n;
	}
	return 0;
}

/* Reads requests and answers them. Returns -1 when the connection is over. */
static int serve(struct server *server, int fd, struct connection *c)
{
	size_t room;
	ssize_t n;
	int status;

	for (;;) {
		status = answer(fd, c);
		if (status != 0) {
			watch(server, fd, EPOLL_CTL_MOD, EPOLLOUT);
			return status < 0 ? -1 : 0;
		}
		if (c->last)
			return -1;
		room = sizeof(c->request) - 1 - c->received;
		n = read(fd, c->request + c->received, room);
		if (n < 0 && errno == EAGAIN) {
			watch(server, fd, EPOLL_CTL_MOD, EPOLLIN);
			return 0;
		}
		if (n <= 0)
			return -1;
		c->received += n;
		c->request[c->received] = '\0';
		if (strstr(c->request, "\r\n\r\n")) {
			c->body_left = strtoul(c->request + strcspn(c->request, "/") + 1, NULL, 10);
			c->header_left = snprintf(c->header, sizeof(c->header),
				"HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", c->body_left);
			c->last = strstr(c->request, " HTTP/1.0\r\n") != NULL;
			c->body_at = c->received = 0;
		}
	}
}

static void accept_all(struct server *server)
{
	int fd;

	while ((fd = accept(server->listener, NULL, NULL)) >= 0) {
		if (fd >= CONNECTIONS) {
			close(fd);
			continue;
		}
		fcntl(fd, F_SETFL, O_NONBLOCK);
		memset(&server->connections[fd], 0, sizeof(struct connection));
		watch(server, fd, EPOLL_CTL_ADD, EPOLLIN);
	}
}

static void *run(void *cpu)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct epoll_event events[EVENTS];
	struct server server = {0};
	int n, fd, on = 1;

	server.connections = calloc(CONNECTIONS, sizeof(struct connection));
	server.epoll = epoll_create(CONNECTIONS);
	server.listener = socket(AF_INET, SOCK_STREAM, 0);
	fcntl(server.listener, F_SETFL, O_NONBLOCK);
	setsockopt(server.listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
	setsockopt(server.listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (bind(server.listener, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
	    listen(server.listener, 1024) != 0)
		return perror("listen"), exit(1), NULL;
	watch(&server, server.listener, EPOLL_CTL_ADD, EPOLLIN);
	printf("thread %ld is ready\n", (long)cpu);
	fflush(stdout);

	while (!stopping) {
		n = epoll_wait(server.epoll, events, EVENTS, -1);
		for (int i = 0; i < n; i++) {
			fd = events[i].data.fd;
			if (fd == server.listener)
				accept_all(&server);
			else if (serve(&server, fd, &server.connections[fd]) < 0)
				close(fd);
		}
	}
	free(server.connections);
	return NULL;
}

int main(int argc, char **argv)
{
	port = argc > 1 ? atoi(argv[1]) : 8080;
	count = argc > 2 ? atoi(argv[2]) : 1;
	if (count < 1 || count > THREADS)
		return 1;
	signal(SIGINT, stop);
	signal(SIGPIPE, SIG_IGN);
	for (long i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, run, (void *)i);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
