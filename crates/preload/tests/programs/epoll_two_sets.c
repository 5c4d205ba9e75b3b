/* One socket in two sets, and by two numbers in one set. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    int level = NEED(epoll_create1(0)), edge = NEED(epoll_create1(0));
    SHOW(add(level, pair.server, EPOLLIN, 1));
    SHOW(add(edge, pair.server, EPOLLIN | EPOLLET, 2));
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "abc", 3, 0));
        show_epoll("level", level, -1);
        show_epoll("edge", edge, -1);
        show_epoll("level again", level, -1);
        show_epoll("edge again", edge, 20);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_epoll("level, empty", level, 20);
        show_epoll("edge, empty", edge, 20);
    }
    int other = NEED(dup(pair.server));
    SHOW(add(level, other, EPOLLIN, 3));
    SHOW(send(pair.client, "def", 3, 0));
    show_epoll("both numbers", level, -1);
    SHOW(close(other));
    show_epoll("the socket is still open", level, -1);
    SHOW(epoll_ctl(level, EPOLL_CTL_DEL, pair.server, NULL));
    show_epoll("one was deleted, the other is out of reach", level, -1);
    show_epoll("edge", edge, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(close(level));
    SHOW(send(pair.client, "ghi", 3, 0));
    show_epoll("edge", edge, -1);
    SHOW(close(pair.server));
    show_epoll("closed", edge, 20);
    return 0;
}
