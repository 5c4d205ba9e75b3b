/* Level-triggered epoll: told as long as it is so. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    int set = NEED(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLRDHUP, 1));
    show_epoll("nothing", set, 0);
    show_epoll("nothing", set, 30);
    SHOW(send(pair.client, "abcdef", 6, 0));
    show_epoll("six bytes", set, -1);
    show_epoll("told again", set, -1);
    SHOW(recv(pair.server, bytes, 2, 0));
    show_epoll("four are left", set, -1);
    SHOW(recv(pair.server, bytes, 16, 0));
    show_epoll("none are left", set, 0);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLOUT, 2));
    show_epoll("writable", set, -1);
    SHOW(send(pair.client, "x", 1, 0));
    wait_for(pair.server, 1);
    show_epoll("both", set, -1);
    SHOW(modify(set, pair.server, EPOLLOUT, 3));
    show_epoll("asked for writing", set, -1);
    SHOW(modify(set, pair.server, 0, 4));
    show_epoll("asked for nothing", set, 20);
    SHOW(modify(set, pair.server, EPOLLIN, 5));
    show_epoll("asked for reading", set, -1);
    SHOW(recv(pair.server, bytes, 16, MSG_PEEK));
    show_epoll("peeked", set, -1);
    SHOW(recv(pair.server, bytes, 16, 0));
    show_epoll("taken", set, 20);
    /* Both ends in one set. */
    SHOW(add(set, pair.client, EPOLLIN, 6));
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "to", 2, 0));
        show_epoll("server", set, -1);
        SHOW(recv(pair.server, bytes, 16, 0));
        SHOW(send(pair.server, "fro", 3, 0));
        show_epoll("client", set, -1);
        SHOW(recv(pair.client, bytes, 16, 0));
    }
    SHOW(send(pair.client, "to", 2, 0));
    SHOW(send(pair.server, "fro", 3, 0));
    wait_for(pair.server, 2);
    wait_for(pair.client, 3);
    show_epoll("both ends", set, -1);
    /* Room for one event at a time: each is told in its turn. */
    struct epoll_event one;
    unsigned told = 0;
    for (int round = 0; round < 8; round++)
        if (epoll_wait(set, &one, 1, -1) == 1)
            told |= 1u << one.data.u64;
    say("told: %#x", told);
    SHOW(epoll_pwait(set, &one, 0, 0, NULL));
    SHOW(epoll_wait(set, &one, -1, 0));
    struct timespec limit = {0, 20000000};
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(epoll_pwait2(set, &one, 1, &limit, NULL));
    say("%u", (unsigned)one.data.u64);
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(epoll_pwait2(set, &one, 1, &limit, NULL));
    limit.tv_nsec = 1000000000;
    SHOW(epoll_pwait2(set, &one, 1, &limit, NULL));
    return 0;
}
