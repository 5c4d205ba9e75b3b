/* A process that sleeps in poll(2) of many promoted sockets, and in select(2) of as many: each message is seen at once, on
 * whichever it comes, and up to 128 sockets are woken by their doorbells. */
#include "transcript.h"

enum { MOST = 140, ROUNDS = 60 };

/* Takes and answers what comes, until the first socket ends. */
static void answers(struct sockaddr_in at, int count, int by_select)
{
    struct pollfd all[MOST];
    for (int which = 0; which < count; which++) {
        all[which] = (struct pollfd){NEED(socket(AF_INET, SOCK_STREAM, 0)), POLLIN, 0};
        NEED(connect(all[which].fd, (struct sockaddr *)&at, sizeof at));
    }
    for (;;) {
        fd_set set;
        FD_ZERO(&set);
        for (int which = 0; which < count; which++)
            FD_SET(all[which].fd, &set);
        int ready = by_select ? select(all[count - 1].fd + 1, &set, NULL, NULL, NULL) : poll(all, count, -1);
        if (ready < 1)
            _exit(1);
        for (int which = 0; which < count; which++) {
            char byte;
            if (!(by_select ? FD_ISSET(all[which].fd, &set) : all[which].revents & POLLIN))
                continue;
            if (recv(all[which].fd, &byte, 1, MSG_DONTWAIT) <= 0)
                _exit(which);
            send_all(all[which].fd, &byte, 1);
        }
    }
}

static void converse(int count, int by_select)
{
    struct sockaddr_in at;
    int listener = listening(&at), fds[MOST], most = 0;
    NEED(listen(listener, MOST));
    pid_t child = NEED(fork());
    if (child == 0)
        answers(at, count, by_select);
    for (int which = 0; which < count; which++)
        fds[which] = NEED(accept(listener, NULL, NULL));
    close(listener);
    for (int which = 0; which < count; which++)
        if (!is_echoed(fds[which], 4, 1))
            fail("an answer");
    for (int round = 0; round < ROUNDS; round++) {
        int which = round * 37 % count;
        usleep(1000);
        /* It is stopped, so that what wakes it stays where it is. */
        wait_until(child, 'S');
        NEED(kill(child, SIGSTOP));
        wait_until(child, 'T');
        int before = announced();
        send_all(fds[which], "x", 1);
        int came = announced() - before;
        most = came > most ? came : most;
        NEED(kill(child, SIGCONT));
        char byte;
        take_all(fds[which], &byte, 1);
    }
    say("%d by %s", count, by_select ? "select" : "poll");
    if (eager() && (most == 0) != (count > 128))
        say("%s doorbell", most == 0 ? "by no" : "by a");
    for (int which = count - 1; which >= 0; which--)
        close(fds[which]);
    int status;
    NEED(waitpid(child, &status, 0));
    SHOW(WEXITSTATUS(status) < count);
}

int main(void)
{
    for (int by_select = 0; by_select < 2; by_select++) {
        converse(20, by_select);
        converse(100, by_select);
        converse(MOST, by_select);
    }
    return 0;
}
