/* A ring that completes by polling devices: it refuses what is not for them, and what it refuses is not done. */
#include "ring.h"

int main(void)
{
    struct ring ring;
    struct pair pair = promoted();
    if (!make(&ring, IORING_SETUP_IOPOLL)) {
        say("no ring that polls: %s", strerrorname_np(errno));
        used(pair);
        return 0;
    }
    queue(&ring, IORING_OP_CLOSE, pair.server, 1);
    finish(&ring, "a close", 0);
    queue(&ring, IORING_OP_SHUTDOWN, pair.server, 2)->len = SHUT_WR;
    finish(&ring, "a shutdown", 0);
    used(pair);
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    pair = promoted();
    queue_control(&ring, set, EPOLL_CTL_ADD, pair.server, &event);
    finish(&ring, "a control", 0);
    SHOW(send(pair.client, "x", 1, 0));
    show_epoll("not in the set", set, 0);
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    used(pair);
    return 0;
}
