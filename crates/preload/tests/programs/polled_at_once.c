/* A program that polls in a busy loop, with a timeout of 0, and never sleeps: messages for it are not announced. */
#include "transcript.h"
#include <sys/mman.h>

enum { ROUNDS = 300, LEARNED = 100 };

/* How often the child has found nothing. */
static volatile int *empty;

static void answers(struct sockaddr_in at, bool reads_on)
{
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
    char byte;
    for (;;) {
        struct pollfd one = {fd, POLLIN, 0};
        while (NEED(poll(&one, 1, 0)) == 0) {
            ++*empty;
            sched_yield();
        }
        if (recv(fd, &byte, 1, MSG_DONTWAIT) <= 0)
            _exit(0);
        if (reads_on && recv(fd, &byte, 1, MSG_DONTWAIT) >= 0)
            _exit(5);
        send_all(fd, &byte, 1);
    }
}

/* Segments with data that the kernel has sent. */
static int announced_over_tcp(int fd)
{
    struct tcp_info info;
    socklen_t length = sizeof info;
    NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    return info.tcpi_data_segs_out;
}

static void ask(bool reads_on)
{
    struct sockaddr_in at;
    int listener = listening(&at), before = 0;
    pid_t child = NEED(fork());
    if (child == 0) {
        close(listener);
        answers(at, reads_on);
    }
    int fd = NEED(accept(listener, NULL, NULL));
    close(listener);
    char byte = 'x';
    for (int round = 0; round < ROUNDS; round++) {
        if (round == LEARNED)
            before = announced_over_tcp(fd);
        for (int from = *empty; *empty < from + 4;)
            sched_yield();
        send_all(fd, &byte, 1);
        /* Without a sleep, before which a peer is woken that has not consumed a message for a millisecond. */
        while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0)
            sched_yield();
    }
    int came = announced_over_tcp(fd) - before;
    say("%s: all answered", reads_on ? "reads on" : "reads once");
    if (eager() && came > 0)
        say("%d announced", came);
    close(fd);
    int status;
    NEED(waitpid(child, &status, 0));
    say("the child's status: %d", status);
}

int main(void)
{
    empty = mmap(NULL, sizeof *empty, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (empty == MAP_FAILED)
        fail("mmap");
    ask(false);
    ask(true);
    return 0;
}
