/* A set for each message: in, the message, out, and the set goes. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char byte;
    for (int round = 0; round < 40; round++) {
        int set = NEED(epoll_create1(0));
        struct epoll_event event;
        NEED(add(set, pair.server, EPOLLIN, 1));
        NEED(send(pair.client, "x", 1, 0));
        if (epoll_wait(set, &event, 1, 5000) != 1)
            say("round %d: nothing in time", round);
        NEED(recv(pair.server, &byte, 1, 0));
        NEED(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
        close(set);
    }
    say("# one duplicate out, the socket in");
    int set = NEED(epoll_create1(0));
    int other = NEED(dup(pair.server));
    SHOW(add(set, other, EPOLLIN, 8));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, other, NULL));
    SHOW(add(set, pair.server, EPOLLIN, 7));
    NEED(send(pair.client, "x", 1, 0));
    show_epoll("a message", set, 5000);
    NEED(recv(pair.server, &byte, 1, 0));
    NEED(shutdown(pair.client, SHUT_WR));
    show_epoll("the end", set, 5000);
    say("# a duplicate in the set is closed");
    pair = promoted();
    other = NEED(dup(pair.server));
    SHOW(add(set, other, EPOLLIN, 9));
    close(other);
    NEED(send(pair.client, "y", 1, 0));
    SHOW(recv(pair.server, &byte, 1, 0));
    return 0;
}
