/* Several connections that always have something, and waits with room for fewer: each has its turn. */
#include "transcript.h"

enum { MOST = 5, CALLS = 400 };

static void try(int count, int room, int timeout, unsigned wanted)
{
    struct pair pairs[MOST];
    char bytes[2 * CALLS] = {0};
    int set = NEED(epoll_create1(0)), turns[MOST] = {0}, all = 0, least = 2 * CALLS;
    for (int which = 0; which < count; which++) {
        pairs[which] = promoted();
        NEED(add(set, pairs[which].server, wanted, which));
        send_all(pairs[which].client, bytes, sizeof bytes);
    }
    for (int call = 0; call < CALLS; call++) {
        struct epoll_event events[MOST];
        int told = NEED(epoll_wait(set, events, room, timeout));
        for (int place = 0; place < told; place++, all++) {
            char byte;
            take_all(pairs[events[place].data.u64].server, &byte, 1);
            turns[events[place].data.u64]++;
        }
    }
    for (int which = 0; which < count; which++) {
        least = turns[which] < least ? turns[which] : least;
        close(pairs[which].client), close(pairs[which].server);
    }
    close(set);
    say("%d, room for %d, %s: %s", count, room, wanted & EPOLLOUT ? "in and out" : "in",
        least * count > all / 2 ? "each in its turn" : "some wait");
}

int main(void)
{
    for (int count = 2; count <= MOST; count++)
        for (int room = 1; room <= 2; room++) {
            try(count, room, 0, EPOLLIN);
            try(count, room, 0, EPOLLIN | EPOLLOUT);
        }
    return 0;
}
