/* ADD, MOD and DEL while bytes are there. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    int set = NEED(epoll_create1(0));
    SHOW(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    const unsigned modes[] = {0, EPOLLET, EPOLLONESHOT};
    for (int at = 0; at < 3; at++) {
        say("# mode %#x", modes[at]);
        SHOW(add(set, pair.server, EPOLLIN | modes[at], 1));
        show_epoll("added with bytes", set, -1);
        SHOW(modify(set, pair.server, EPOLLIN | modes[at], 2));
        show_epoll("changed with bytes", set, -1);
        SHOW(modify(set, pair.server, EPOLLOUT | modes[at], 3));
        show_epoll("for writing", set, -1);
        SHOW(modify(set, pair.server, modes[at], 4));
        show_epoll("for nothing", set, 20);
        SHOW(modify(set, pair.server, EPOLLIN | modes[at], 5));
        show_epoll("for reading", set, -1);
        SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
        show_epoll("deleted", set, 20);
        SHOW(add(set, pair.server, EPOLLIN | modes[at], 6));
        show_epoll("added again", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
        SHOW(send(pair.client, "def", 3, 0));
        show_epoll("not there", set, 20);
        wait_for(pair.server, 3);
    }
    SHOW(add(set, pair.server, EPOLLIN, 7));
    show_epoll("there", set, -1);
    SHOW(close(pair.server));
    show_epoll("closed", set, 20);
    return 0;
}
