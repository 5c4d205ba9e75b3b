/* A thread that sleeps in a set is woken once, however many of the set's connections have something: the others' doorbells
 * stay silent. The process that sleeps is stopped meanwhile, so that it sleeps on. */
#include "transcript.h"

enum { CONNECTIONS = 8, ROUNDS = 12 };

static void answers(struct sockaddr_in at)
{
    int set = NEED(epoll_create1(EPOLL_CLOEXEC)), fds[CONNECTIONS];
    char byte;
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fds[i], (struct sockaddr *)&at, sizeof at));
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event));
    }
    for (;;) {
        struct epoll_event events[CONNECTIONS];
        int count = epoll_wait(set, events, CONNECTIONS, -1);
        for (int i = 0; i < count; i++) {
            if (recv(events[i].data.fd, &byte, 1, 0) <= 0)
                _exit(0);
            send_all(events[i].data.fd, &byte, 1);
        }
    }
}

int main(void)
{
    struct sockaddr_in at;
    int listener = listening(&at), fds[CONNECTIONS], most = 0;
    char byte = 'x';
    pid_t child = NEED(fork());
    if (child == 0) {
        close(listener);
        answers(at);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        fds[i] = NEED(accept(listener, NULL, NULL));
    close(listener);
    for (int round = 0; round < ROUNDS; round++) {
        /* Messages enough for a promotion, and for the set to look at all by itself. */
        for (int message = 0; message < 4 * CONNECTIONS; message++) {
            send_all(fds[message % CONNECTIONS], &byte, 1);
            take_all(fds[message % CONNECTIONS], &byte, 1);
        }
        usleep(2000);
        wait_until(child, 'S');
        NEED(kill(child, SIGSTOP));
        wait_until(child, 'T');
        int before = announced();
        for (int i = 0; i < CONNECTIONS; i++)
            send_all(fds[i], &byte, 1);
        int came = announced() - before;
        if (round >= ROUNDS / 2 && came > most)
            most = came;
        NEED(kill(child, SIGCONT));
        for (int i = 0; i < CONNECTIONS; i++)
            take_all(fds[i], &byte, 1);
    }
    say("woken once: %d", most <= 1);
    if (eager() && most == 0)
        say("by no doorbell");
    for (int i = 0; i < CONNECTIONS; i++)
        close(fds[i]);
    int status;
    NEED(waitpid(child, &status, 0));
    return 0;
}
