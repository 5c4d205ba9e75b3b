/* Epoll sets that come and go, one after the other, with one connection in each. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char byte;
    for (int round = 0; round < 6; round++) {
        int set = NEED(epoll_create1(0));
        unsigned events = round % 2 ? EPOLLIN | EPOLLET : EPOLLIN;
        NEED(add(set, pair.server, events, 1));
        show_epoll("nothing", set, 0);
        for (int message = 0; message < 40; message++) {
            NEED(send(pair.client, "x", 1, 0));
            struct epoll_event event;
            if (epoll_wait(set, &event, 1, -1) != 1 || recv(pair.server, &byte, 1, 0) != 1)
                fail("a message");
        }
        SHOW(send(pair.client, "x", 1, 0));
        show_epoll("one", set, -1);
        /* Round by round it is taken before the set goes, after, or not at all. */
        if (round % 3 == 0)
            SHOW(recv(pair.server, &byte, 1, 0));
        close(set);
        if (round % 3 == 1)
            SHOW(recv(pair.server, &byte, 1, 0));
        if (round % 3 == 2) {
            set = NEED(epoll_create1(0));
            NEED(add(set, pair.server, EPOLLIN, 2));
            show_epoll("what was left", set, -1);
            SHOW(recv(pair.server, &byte, 1, 0));
            show_epoll("taken", set, 0);
            close(set);
        }
        show_poll("taken", pair.server, POLLIN, 0);
    }
    return 0;
}
