/* Waits with room for fewer events than there are connections that always have something: whatever else is in the
 * set is told of, too. */
#include "transcript.h"
#include <sys/eventfd.h>

int main(void)
{
    struct pair pairs[3];
    int set = NEED(epoll_create1(0));
    for (int at = 0; at < 3; at++) {
        pairs[at] = promoted();
        NEED(add(set, pairs[at].server, EPOLLIN, at));
        NEED(send(pairs[at].client, "unread", 6, 0));
    }
    int other = NEED(eventfd(1, EFD_NONBLOCK));
    NEED(add(set, other, EPOLLIN, 3));
    for (int timeout = 0; timeout < 2; timeout++)
        for (int room = 1; room <= 3; room++) {
            bool seen[4] = {false};
            for (int waits = 0; waits < 20000 && !(seen[0] && seen[1] && seen[2] && seen[3]); waits++) {
                struct epoll_event events[3];
                int told = NEED(epoll_wait(set, events, room, timeout * 1000));
                for (int at = 0; at < told; at++)
                    seen[events[at].data.u64] = true;
            }
            say("room for %d, timeout %d: %d%d%d and %d", room, timeout, seen[0], seen[1], seen[2], seen[3]);
        }
    return 0;
}
