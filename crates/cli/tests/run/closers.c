/* Threads that connect to themselves, talk and close at the same time, over and over; then the program is quiet. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 250

static void *talk(void *nothing)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char byte;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		exit(1);
	for (int round = 0; round < ROUNDS; round++) {
		int client = socket(AF_INET, SOCK_STREAM, 0), server;

		if (connect(client, (struct sockaddr *)&address, length) || (server = accept(listener, NULL, NULL)) < 0 ||
		    send(client, "x", 1, 0) != 1 || recv(server, &byte, 1, 0) != 1)
			exit(2);
		close(server);
		close(client);
	}
	close(listener);
	return nothing;
}

int main(void)
{
	pthread_t threads[THREADS];

	for (int number = 0; number < THREADS; number++)
		if (pthread_create(&threads[number], NULL, talk, NULL))
			return 3;
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
	puts("quiet");
	fflush(stdout);
	getchar();
	return 0;
}
