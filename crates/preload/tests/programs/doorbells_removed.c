/* A connection that was taken out of an epoll set, which is never waited in again, is woken by its doorbell where the program
 * waits for it by itself. */
#include "woken.h"

int main(void)
{
    pair = promoted();
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, answers, NULL));
    set = NEED(epoll_create1(EPOLL_CLOEXEC));
    for (int time = 0; time < 2; time++) {
        struct epoll_event event = {.events = EPOLLIN};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
        exchange(IN_SET);
        NEED(epoll_ctl(set, EPOLL_CTL_DEL, pair.client, NULL));
        exchange(time ? BLOCKING : POLLED);
        exchange(time ? POLLED : BLOCKING);
    }
    char byte = LAST;
    send_all(pair.client, &byte, 1);
    take_all(pair.client, &byte, 1);
    NEED(-pthread_join(thread, NULL));
    return 0;
}
