/* EPOLLONESHOT: told once, until it is asked again. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    int set = NEED(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLONESHOT, 1));
    show_epoll("nothing", set, 20);
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "abc", 3, 0));
        show_epoll("told", set, -1);
        show_epoll("once", set, 20);
        SHOW(send(pair.client, "def", 3, 0));
        show_epoll("not of this", set, 20);
        SHOW(modify(set, pair.server, EPOLLIN | EPOLLONESHOT, 2 + round));
        show_epoll("asked again", set, -1);
        wait_for(pair.server, 6);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(modify(set, pair.server, EPOLLIN | EPOLLONESHOT, 8));
        show_epoll("nothing", set, 20);
    }
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLOUT | EPOLLONESHOT | EPOLLET, 9));
    show_epoll("writable", set, -1);
    SHOW(send(pair.client, "x", 1, 0));
    show_epoll("used up", set, 20);
    SHOW(close(pair.client));
    show_epoll("used up for the end too", set, 20);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLONESHOT, 10));
    show_epoll("asked again", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    return 0;
}
