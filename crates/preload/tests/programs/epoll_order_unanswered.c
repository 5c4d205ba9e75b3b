/* As epoll_order.c, with a peer that gets no answers, and whose bytes are read one by one: connections with bytes left are
 * reported before those that got theirs later. */
#include "transcript.h"

enum { COUNT = 5, ROOM = 16, STEPS = 120, ANSWERED = 'a' };

/* Takes one byte at each event, answers it or reports whose it was, and stops behind each wait that reported any, and behind
 * the first that reads from the pipe: in no wait, which may have looked at some connections already. */
static void takes(struct sockaddr_in at, int stops, int reports)
{
    int set = NEED(epoll_create1(0)), fds[COUNT];
    NEED(add(set, stops, EPOLLIN, COUNT));
    for (int which = 0; which < COUNT; which++) {
        fds[which] = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fds[which], (struct sockaddr *)&at, sizeof at));
        NEED(add(set, fds[which], EPOLLIN, which));
    }
    for (;;) {
        struct epoll_event events[ROOM];
        bool reported = false, stop = false;
        int ready = epoll_wait(set, events, ROOM, -1);
        for (int place = 0; place < ready; place++) {
            int which = events[place].data.u64;
            char byte;
            if (which == COUNT) {
                stop = NEED(read(stops, &byte, 1)) > 0;
                continue;
            }
            if (NEED(recv(fds[which], &byte, 1, 0)) == 0)
                _exit(0);
            if (byte == ANSWERED) {
                send_all(fds[which], &byte, 1);
                continue;
            }
            reported = true;
            NEED(write(reports, &(char){'0' + which}, 1));
        }
        if (reported)
            NEED(write(reports, "|", 1));
        if (reported || stop)
            NEED(raise(SIGSTOP));
    }
}

int main(void)
{
    /* Bytes that are sent on one CPU arrive in their order. */
    stay_on_one_cpu();

    struct sockaddr_in at;
    int listener = listening(&at), fds[COUNT], stops[2], reports[2], unread = 0;
    unsigned seed = 11;
    char byte;
    NEED(pipe(stops));
    NEED(pipe(reports));
    pid_t child = NEED(fork());
    if (child == 0)
        takes(at, stops[0], reports[1]);
    for (int which = 0; which < COUNT; which++) {
        fds[which] = NEED(accept(listener, NULL, NULL));
        int on = 1;
        NEED(setsockopt(fds[which], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    }
    close(listener);
    for (int which = 0; which < COUNT; which++)
        warm_far(fds[which], ANSWERED, &byte, 1);
    NEED(write(stops[1], "s", 1));
    wait_until(child, 'T');
    for (int step = 0; step < STEPS; step++) {
        char line[64] = "";
        int length = 0;
        do {
            int which = next_random(&seed) % COUNT, count = 1 + next_random(&seed) % 3;
            send_all(fds[which], "xyz", count);
            unread += count;
            length += snprintf(line + length, sizeof line - length, "%d%.*s ", which, count, "xyz");
        } while (unread < 4 || (length < 24 && next_random(&seed) % 3));
        NEED(kill(child, SIGCONT));
        line[length++] = ':';
        do {
            NEED(read(reports[0], &byte, 1));
            unread -= byte != '|';
            line[length++] = byte;
        } while (byte != '|');
        say("%.*s", length, line);
        wait_until(child, 'T');
    }
    NEED(kill(child, SIGKILL));
    NEED(waitpid(child, NULL, 0));
    return 0;
}
