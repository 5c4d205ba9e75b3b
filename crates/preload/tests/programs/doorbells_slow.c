/* A peer that knows of a message and takes it only later is no peer that waits unseen: a thread that sleeps for its answer wakes
 * up for its sake a few times, and not at each message. */
#include "transcript.h"

#include <sys/resource.h>

enum { ROUNDS = 60, THINKS_US = 5000 };

static void answers_late(int fd)
{
    char byte;
    struct pollfd in = {.fd = fd, .events = POLLIN};
    for (;;) {
        NEED(poll(&in, 1, -1));
        usleep(THINKS_US);
        if (recv(fd, &byte, 1, 0) <= 0)
            _exit(0);
        send_all(fd, &byte, 1);
    }
}

static long sleeps(void)
{
    struct rusage usage;
    NEED(getrusage(RUSAGE_SELF, &usage));
    return usage.ru_nvcsw;
}

int main(void)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    char byte = 'x';
    pid_t child = NEED(fork());
    if (child == 0) {
        close(listener);
        int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
        answers_late(fd);
    }
    int fd = NEED(accept(listener, NULL, NULL));
    long before = sleeps();
    for (int round = 0; round < ROUNDS; round++) {
        send_all(fd, &byte, 1);
        take_all(fd, &byte, 1);
    }
    say("sleeps as often as it has to: %d", sleeps() - before < ROUNDS + ROUNDS / 2);
    close(fd);
    NEED(waitpid(child, NULL, 0));
    return 0;
}
