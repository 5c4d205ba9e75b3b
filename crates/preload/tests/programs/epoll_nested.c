/* A set is a descriptor that is readable while it has events: for poll(2), select(2), and other
 * sets. */
#include "transcript.h"

static struct pair pair;

static void *sender(void *unused)
{
    (void)unused;
    pause_ms(50);
    send_all(pair.client, "late", 4);
    return NULL;
}

int main(void)
{
    pair = promoted();
    char bytes[16];
    int inner = NEED(epoll_create1(0)), outer = NEED(epoll_create1(0));
    SHOW(add(inner, pair.server, EPOLLIN, 1));
    SHOW(add(outer, inner, EPOLLIN, 2));
    show_poll("nothing", inner, POLLIN, 20);
    show_epoll("nothing", outer, 20);
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "abc", 3, 0));
        show_poll("set", inner, POLLIN, -1);
        show_epoll("outer", outer, -1);
        show_epoll("inner", inner, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_epoll("inner", inner, 0);
        show_poll("set", inner, POLLIN, 20);
        show_epoll("outer", outer, 20);
    }
    pthread_t thread;
    for (int round = 0; round < 3; round++) {
        pthread_create(&thread, NULL, sender, NULL);
        if (round == 0)
            show_poll("woken", inner, POLLIN, -1);
        if (round == 1)
            show_epoll("woken", outer, -1);
        if (round == 2) {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(inner, &set);
            SHOW(select(inner + 1, &set, NULL, NULL, NULL));
        }
        pthread_join(thread, NULL);
        show_epoll("inner", inner, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_epoll("inner", inner, 20);
    }
    return 0;
}
