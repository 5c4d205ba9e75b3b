/* EPOLLRDHUP, EPOLLHUP and EPOLLERR. */
#include "transcript.h"

static char bytes[16];

static int watched(int fd, unsigned events)
{
    int set = NEED(epoll_create1(0));
    NEED(add(set, fd, events, 1));
    return set;
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const unsigned modes[] = {0, EPOLLET};
    for (int at = 0; at < 2; at++) {
        say("# %s-triggered", at ? "edge" : "level");
        struct pair pair = promoted();
        int set = watched(pair.server, EPOLLIN | EPOLLRDHUP | modes[at]);
        int quiet = watched(pair.server, modes[at]);
        SHOW(send(pair.client, "tail", 4, 0));
        SHOW(shutdown(pair.client, SHUT_WR));
        wait_for(pair.server, 4);
        pause_ms(20);
        show_epoll("bytes and the end", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_epoll("the end", set, 20);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_epoll("still", set, 20);
        show_epoll("asked for nothing", quiet, 20);
        SHOW(shutdown(pair.server, SHUT_WR));
        show_epoll("both directions", set, -1);
        show_epoll("asked for nothing", quiet, -1);
        show_epoll("again", quiet, 20);
        close(pair.client);
        close(pair.server);

        pair = promoted();
        set = watched(pair.client, EPOLLIN | EPOLLOUT | EPOLLRDHUP | modes[at]);
        show_epoll("writable", set, -1);
        SHOW(send(pair.client, "unread", 6, 0));
        wait_for(pair.server, 6);
        close(pair.server);
        pause_ms(20);
        show_epoll("reset", set, -1);
        show_epoll("again", set, 20);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        show_epoll("told", set, 20);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        close(pair.client);
        show_epoll("closed", set, 20);
    }
    return 0;
}
