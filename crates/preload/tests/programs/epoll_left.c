/* Sockets that leave their epoll set and are closed, and others that get their numbers at once. Each
 * of the new ones is heard. Sets that are closed with sockets in them, which others follow. */
#include "transcript.h"

enum { PAIRS = 4 };

static void numbers(bool backwards, int followers)
{
    say("# closed %s, %d follow", backwards ? "from the last to the first" : "from the first to the last", followers);
    int set = NEED(epoll_create1(0));
    struct pair old[PAIRS], fresh[PAIRS];
    for (int at = 0; at < PAIRS; at++) {
        old[at] = promoted();
        NEED(add(set, old[at].server, EPOLLIN, at));
    }
    show_epoll("nothing", set, 0);
    for (int at = 0; at < PAIRS; at++) {
        int which = backwards ? PAIRS - 1 - at : at;
        NEED(epoll_ctl(set, EPOLL_CTL_DEL, old[which].server, NULL));
        close(old[which].server);
        close(old[which].client);
    }
    for (int at = 0; at < followers; at++) {
        fresh[at] = connected();
        NEED(add(set, fresh[at].server, EPOLLIN, at));
    }
    /* What was put off until the next wait must not meet them. */
    show_epoll("nothing", set, 0);
    for (int at = 0; at < followers; at++) {
        char byte;
        NEED(send(fresh[at].client, "x", 1, 0));
        show_epoll("heard", set, 5000);
        NEED(recv(fresh[at].server, &byte, 1, 0));
        close(fresh[at].server);
        close(fresh[at].client);
    }
    close(set);
}

/* The connection is promoted while it is in no set, or in one that is gone. */
static void sets(unsigned events)
{
    say("# sets that go, %s", events & EPOLLET ? "edge-triggered" : "level-triggered");
    struct pair pair = connected();
    for (int round = 0; round < 5; round++) {
        int set = NEED(epoll_create1(0));
        SHOW(add(set, pair.server, EPOLLIN | events, 7));
        SHOW(add(set, pair.client, EPOLLIN | events, 7));
        close(set);
        if (round == 1)
            warm(pair);
        if (round == 3) {
            set = NEED(epoll_create1(0));
            SHOW(add(set, pair.server, EPOLLIN | events, 1));
            char byte;
            NEED(send(pair.client, "x", 1, 0));
            show_epoll("heard", set, 5000);
            NEED(recv(pair.server, &byte, 1, 0));
            close(set);
        }
    }
    close(pair.server);
    close(pair.client);
}

int main(void)
{
    for (int followers = 1; followers <= PAIRS; followers++) {
        numbers(false, followers);
        numbers(true, followers);
    }
    sets(0);
    sets(EPOLLET);
    return 0;
}
