/* As epoll_order.c, with connections that their peer closes among those that it writes to: ends, of which the kernel tells,
 * have their place among bytes that it knows nothing of. Of more than are put in order, ends come behind bytes. */
#include "transcript.h"

enum { FEW = 4, MANY = 10, ROUNDS = 24, ANSWERED = 'a' };

/* Connects, and reports whose bytes and ends came, and where a wait ended, until all have ended. What comes by the pipe stops
 * this process before it waits again. */
static void takes(struct sockaddr_in at, int count, unsigned how, int stops, int reports)
{
    int set = NEED(epoll_create1(0)), fds[MANY], left = count;
    NEED(add(set, stops, EPOLLIN, count));
    for (int which = 0; which < count; which++) {
        fds[which] = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fds[which], (struct sockaddr *)&at, sizeof at));
        NEED(add(set, fds[which], EPOLLIN | how, which));
    }
    while (left > 0) {
        struct epoll_event events[MANY + 1];
        bool reported = false, stop = false;
        int ready = NEED(epoll_wait(set, events, count + 1, -1));
        for (int place = 0; place < ready; place++) {
            int which = events[place].data.u64;
            char byte;
            if (which == count) {
                stop = NEED(read(stops, &byte, 1)) > 0;
                continue;
            }
            ssize_t length = NEED(recv(fds[which], &byte, 1, 0));
            if (length > 0 && byte == ANSWERED) {
                send_all(fds[which], &byte, 1);
                continue;
            }
            reported = true;
            NEED(write(reports, &(char){(length > 0 ? '0' : 'a') + which}, 1));
            if (length == 0) {
                left--;
                close(fds[which]);
            }
        }
        if (reported)
            NEED(write(reports, "|", 1));
        if (stop)
            NEED(raise(SIGSTOP));
    }
    _exit(0);
}

/* One wait, behind bytes and ends in an order of chance, or behind bytes and then so many ends. */
static void converse(int count, int last, unsigned how, unsigned *seed)
{
    struct sockaddr_in at;
    int listener = listening(&at), fds[MANY], stops[2], reports[2], order[MANY];
    NEED(pipe(stops));
    NEED(pipe(reports));
    pid_t child = NEED(fork());
    if (child == 0)
        takes(at, count, how, stops[0], reports[1]);
    for (int which = 0; which < count; which++) {
        int on = 1;
        fds[which] = NEED(accept(listener, NULL, NULL));
        NEED(setsockopt(fds[which], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    }
    close(listener);
    for (int which = 0; which < count; which++) {
        char answer;
        warm_far(fds[which], ANSWERED, &answer, sizeof answer);
        order[which] = which;
    }
    /* All are in use again: the first have been quiet for the time of the last. */
    for (int round = 0; round < 3; round++) {
        char answer;
        for (int which = 0; which < count; which++)
            send_all(fds[which], &(char){ANSWERED}, 1);
        for (int which = 0; which < count; which++)
            take_all(fds[which], &answer, 1);
    }
    NEED(write(stops[1], "s", 1));
    wait_until(child, 'T');
    shuffle(order, count, seed);
    char line[MANY + 1];
    for (int which = 0; which < count; which++) {
        int fd = fds[order[which]];
        bool ends = last ? which >= count - last : next_random(seed) % 2;
        line[which] = (ends ? 'a' : '0') + order[which];
        if (ends)
            close(fd);
        else
            send_all(fd, "x", 1);
        fds[order[which]] = ends ? -1 : fd;
    }
    line[count] = ':';
    NEED(kill(child, SIGCONT));
    char reported[MANY + 1];
    for (int which = 0; which <= count; which++)
        NEED(read(reports[0], &reported[which], 1));
    say("%s %.*s %.*s", how ? "edges" : "levels", count + 1, line, count + 1, reported);
    for (int which = 0; which < count; which++)
        if (fds[which] >= 0)
            close(fds[which]);
    status_of(child);
    for (int end = 0; end < 2; end++) {
        close(stops[end]);
        close(reports[end]);
    }
}

int main(void)
{
    /* Bytes that are sent on one CPU arrive in their order. */
    stay_on_one_cpu();
    unsigned seed = 5;
    for (int round = 0; round < ROUNDS; round++)
        converse(FEW, 0, round % 2 ? EPOLLET : 0, &seed);
    for (int round = 0; round < 4; round++) {
        converse(MANY - 1, 1, round % 2 ? EPOLLET : 0, &seed);
        converse(MANY - 2, 1, round % 2 ? EPOLLET : 0, &seed);
    }
    return 0;
}
