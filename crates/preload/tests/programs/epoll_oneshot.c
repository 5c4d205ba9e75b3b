/* EPOLLONESHOT: told once, until it is asked again. */
#include "transcript.h"

/* The end that the kernel alone knows of, and a reset, are not told to whom the event was used up. */
static void used_up_for_ends(int events, bool reset)
{
    struct pair pair = promoted();
    char bytes[16];
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, events | EPOLLONESHOT, 3));
    SHOW(send(pair.client, "abc", 3, 0));
    show_epoll("told", set, -1);
    if (reset) {
        NEED(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
    } else {
        SHOW(shutdown(pair.client, SHUT_WR));
        SHOW(shutdown(pair.server, SHUT_WR));
        SHOW(recv(pair.client, bytes, 1, 0));
    }
    SHOW(close(pair.client));
    pause_ms(5);
    for (int look = 0; look < 3; look++)
        show_epoll("used up", set, 10);
    NEED(modify(set, pair.server, events | EPOLLRDHUP | EPOLLONESHOT, 4));
    show_epoll("asked again", set, -1);
    show_epoll("used up", set, 10);
    close(pair.server);
    close(set);
}

int main(void)
{
    for (int way = 0; way < 4; way++)
        used_up_for_ends(way & 1 ? EPOLLIN : EPOLLIN | EPOLLOUT, way & 2);
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
