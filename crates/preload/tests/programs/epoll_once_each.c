/* Bytes on two connections, and the end of one of them: a wait has one event of each, in the order in which their peers
 * wrote, whether it asks at once or sleeps. What the kernel tells of a connection and what its doorbell does are one event. */
#include "transcript.h"

enum { TURNS = 4, SLEEPS = 40 };

/* Both have been woken by their doorbells, and have been quiet for so long that the set waits for these again. */
static void rests(int set, struct pair *pairs)
{
    struct epoll_event events[8];
    char byte;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int which = 0; which < 2; which++)
            send_all(pairs[which].client, "x", 1);
        NEED(epoll_wait(set, events, 8, -1));
        for (int which = 0; which < 2; which++)
            take_all(pairs[which].server, &byte, 1);
        NEED(epoll_wait(set, events, 8, 1));
    }
    for (int sleep = 0; sleep < SLEEPS; sleep++)
        NEED(epoll_wait(set, events, 8, 1));
}

static void told(int set, const char *how, int timeout)
{
    struct epoll_event events[8];
    int count = NEED(epoll_wait(set, events, 8, timeout));
    for (int place = 0; place < count; place++)
        say("%s: %d of %d is %d", how, place, count, (int)events[place].data.u64);
}

static void try(const char *how, int timeout, int first, bool ends)
{
    struct pair pairs[] = {promoted(), promoted()};
    int set = NEED(epoll_create1(0));
    for (int which = 0; which < 2; which++)
        NEED(add(set, pairs[which].server, EPOLLIN | EPOLLRDHUP, which));
    rests(set, pairs);
    send_all(pairs[first].client, "x", 1);
    send_all(pairs[!first].client, "x", 1);
    if (ends)
        NEED(shutdown(pairs[0].client, SHUT_WR));
    told(set, how, timeout);
    /* What was left is reported again, in the same order. */
    told(set, how, 0);
    for (int which = 0; which < 2; which++)
        close(pairs[which].client), close(pairs[which].server);
    close(set);
}

int main(void)
{
    /* Bytes that are sent on one CPU arrive in their order. */
    stay_on_one_cpu();
    for (int first = 0; first < 2; first++) {
        try("at once", 0, first, false);
        try("at once, ended", 0, first, true);
        try("asleep", -1, first, false);
        try("asleep, ended", -1, first, true);
    }
    return 0;
}
