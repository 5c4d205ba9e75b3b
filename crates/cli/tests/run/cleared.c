/* Clears its environment, as nginx does, and lets two threads talk over TCP. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS 100

static void *serve(void *listener)
{
	char buffer[64];
	ssize_t count;
	int fd = accept(*(int *)listener, NULL, NULL);

	while ((count = recv(fd, buffer, sizeof(buffer), 0)) > 0)
		if (send(fd, buffer, count, 0) != count)
			exit(2);
	close(fd);
	return NULL;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	char sent[64], got[64];
	pthread_t server;

	clearenv();
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    pthread_create(&server, NULL, serve, &listener) ||
	    connect(fd, (struct sockaddr *)&address, length))
		return 1;
	for (int round = 0; round < ROUNDS; round++) {
		memset(sent, round, sizeof(sent));
		if (send(fd, sent, sizeof(sent), 0) != sizeof(sent) ||
		    recv(fd, got, sizeof(got), MSG_WAITALL) != sizeof(got) || memcmp(sent, got, sizeof(got)))
			return 3;
		usleep(2000); /* the monitor gets round to its answers */
	}
	close(fd);
	pthread_join(server, NULL);
	_exit(0);
}
