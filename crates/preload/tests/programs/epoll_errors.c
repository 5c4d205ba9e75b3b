/* What epoll_ctl(2) and epoll_wait(2) refuse. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    struct epoll_event event = {.events = EPOLLIN};
    int set = NEED(epoll_create1(0));
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, pair.server, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, NULL));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, 999, &event));
    SHOW(epoll_ctl(999, EPOLL_CTL_ADD, pair.client, &event));
    SHOW(epoll_ctl(pair.client, EPOLL_CTL_ADD, pair.server, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
    SHOW(epoll_ctl(set, 77, pair.client, &event));
    int file = NEED(open("/dev/null", O_RDONLY)), regular = NEED(open("/proc/self/exe", O_RDONLY));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, regular, &event));
    SHOW(epoll_wait(set, &event, 0, 0));
    SHOW(epoll_wait(set, &event, -1, 0));
    SHOW(epoll_wait(pair.client, &event, 1, 0));
    SHOW(epoll_wait(999, &event, 1, 0));
    SHOW(epoll_wait(file, &event, 1, 0));
    SHOW(send(pair.client, "x", 1, 0));
    wait_for(pair.server, 1);
    SHOW(epoll_wait(set, NULL, 1, 0));
    SHOW(epoll_wait(set, (struct epoll_event *)16, 1, 0));
    show_epoll("still told", set, -1);
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
    show_epoll("deleted", set, 0);
    SHOW(epoll_create(0));
    SHOW(epoll_create1(77));
    SHOW(close(set));
    SHOW(epoll_wait(set, &event, 1, 0));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event));
    return 0;
}
