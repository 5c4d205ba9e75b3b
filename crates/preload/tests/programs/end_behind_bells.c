/* A wait that asks once finds the end though its wake-up byte lies before it, whose message was taken. */
#include "transcript.h"

#include <sys/select.h>

enum way { BY_POLL, BY_SELECT, BY_LEVEL, BY_EDGE };

static void look(const char *what, int fd, int set, enum way way, unsigned events)
{
    fd_set reads;
    struct timeval now = {0, 0};
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    if (way == BY_POLL)
        show_poll(what, fd, events, 0);
    else if (way == BY_SELECT)
        say("%s: select = %d", what, NEED(select(fd + 1, &reads, NULL, NULL, &now)));
    else
        show_epoll(what, set, 0);
}

static void talk(enum way way, unsigned events)
{
    say("# by %s%s", (const char *[]){"poll", "select", "epoll", "edges of epoll"}[way],
        events & EPOLLRDHUP ? ", the end too" : "");
    struct pair pair = promoted();
    int set = NEED(epoll_create1(EPOLL_CLOEXEC));
    if (way >= BY_LEVEL)
        NEED(add(set, pair.server, events | (way == BY_EDGE ? EPOLLET : 0), 1));
    look("nothing", pair.server, set, way, events);
    SHOW(send(pair.client, "x", 1, 0));
    wait_for(pair.server, 1);
    look("a byte", pair.server, set, way, events);
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    SHOW(send(pair.client, "y", 1, 0));
    SHOW(recv(pair.server, &byte, 1, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    pause_ms(20);
    look("the end", pair.server, set, way, events);
    SHOW(recv(pair.server, &byte, 1, 0));
    close(set);
    close(pair.client);
    close(pair.server);
}

int main(void)
{
    for (enum way way = BY_POLL; way <= BY_EDGE; way++)
        for (int end = 0; end < 2; end++)
            talk(way, EPOLLIN | (end ? EPOLLRDHUP : 0));
    return 0;
}
