#include "receiver.h"
#include <sys/wait.h>

static void *elsewhere(void *receiver)
{
	EQUAL(mp_receiver_add(receiver, 0, NULL), -EBADF);
	return NULL;
}

int main(void)
{
	struct mp_receiver_config config = { .size = sizeof(config), .sockets = 2 };
	mp_receiver *receiver = make_receiver(&config);
	struct sockaddr_in addr;
	int status, sender, pipes[2], fd = bound_socket(SOCK_DGRAM, 0, &addr), marker;
	pthread_t thread;

	EQUAL(pipe(pipes), 0);
	EQUAL(mp_receiver_add(receiver, -1, NULL), -EBADF);
	EQUAL(mp_receiver_add(receiver, pipes[0], NULL), -ENOTSOCK);
	EQUAL(mp_receiver_add(NULL, fd, NULL), -EBADF);
	EQUAL(pthread_create(&thread, NULL, elsewhere, receiver), 0);
	EQUAL(pthread_join(thread, NULL), 0);

	udp_of(receiver, &marker, &sender);
	EQUAL(mp_receiver_remove(receiver, mp_receiver_add(receiver, fd, NULL)), fd);
	CHECK(mp_receiver_add(receiver, fd, NULL) > 0);
	EQUAL(mp_receiver_add(receiver, fd, NULL), -EEXIST);
	fd = bound_socket(SOCK_DGRAM, 0, &addr);
	EQUAL(mp_receiver_add(receiver, fd, NULL), -ENOSPC);
	CHECK(fcntl(fd, F_GETFD) >= 0);

	/* A child cannot use it, and keeps what it wanted to give. */
	pid_t child = fork();
	if (child == 0)
		_exit(mp_receiver_add(receiver, fd, NULL) != -ECHILD || fcntl(fd, F_GETFD) < 0);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	EQUAL(send(sender, "x", 1, 0), 1);
	CHECK(next_message(receiver).cookie == &marker);
	EQUAL(mp_receiver_destroy(receiver), 0);
	return 0;
}
