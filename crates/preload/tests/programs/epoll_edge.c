/* Edge-triggered epoll: told of each arrival, once. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[64];
    int set = NEED(epoll_create1(0));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    show_epoll("nothing", set, 20);
    SHOW(send(pair.client, "abc", 3, 0));
    show_epoll("arrival", set, -1);
    show_epoll("told already", set, 20);
    SHOW(send(pair.client, "def", 3, 0));
    show_epoll("another arrival", set, -1);
    show_epoll("told already", set, 20);
    SHOW(recv(pair.server, bytes, 2, 0));
    show_epoll("a part taken is none", set, 20);
    SHOW(send(pair.client, "ghi", 3, 0));
    show_epoll("arrival beside the rest", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
    show_epoll("empty", set, 20);
    for (int round = 0; round < 5; round++) {
        SHOW(send(pair.client, "x", 1, 0));
        show_epoll("arrival", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
    }
    show_epoll("empty", set, 20);
    /* A change of the interest tells anew. */
    SHOW(send(pair.client, "y", 1, 0));
    show_epoll("arrival", set, -1);
    show_epoll("told already", set, 20);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLET, 2));
    show_epoll("told anew", set, -1);
    show_epoll("told already", set, 20);
    SHOW(modify(set, pair.server, EPOLLIN | EPOLLOUT | EPOLLET, 3));
    show_epoll("both", set, -1);
    /* The kernel may tell once more that it has room. */
    struct epoll_event again;
    while (epoll_wait(set, &again, 1, 20) > 0)
        ;
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(send(pair.client, "z", 1, 0));
    show_epoll("arrival, and writable", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    /* A write that always fits is no edge. */
    SHOW(send(pair.server, "fits", 4, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    show_epoll("no edge", set, 20);
    SHOW(shutdown(pair.client, SHUT_WR));
    show_epoll("the end", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    show_epoll("told already", set, 20);
    return 0;
}
