/* A program that takes its socket out of its set and puts it in again around each message, and uses it meanwhile.
 * spins: 0 */
#include "transcript.h"

enum { ROUNDS = 5000 };

static void *answers(void *argument)
{
    int fd = *(int *)argument;
    char bytes[64];
    for (int round = 0; round < ROUNDS; round++) {
        take_all(fd, bytes, 50);
        send_all(fd, bytes, 50);
    }
    return NULL;
}

int main(void)
{
    struct pair pair = connected();
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, answers, &pair.server));
    int sets[2] = {NEED(epoll_create1(0)), NEED(epoll_create1(0))};
    char bytes[64] = {0};
    struct epoll_event event;
    int now = 0;
    for (int round = 0, left = ROUNDS; left > 0; round++, left--) {
        event = (struct epoll_event){.events = EPOLLIN, .data.u64 = round};
        NEED(epoll_ctl(sets[now], EPOLL_CTL_ADD, pair.client, &event));
        send_all(pair.client, bytes, 50);
        for (int done = 0; done < 50;) {
            if (NEED(epoll_wait(sets[now], &event, 1, 30000)) != 1)
                fail("nothing came");
            if (event.events != EPOLLIN || event.data.u64 != (uint64_t)round)
                fail("another event");
            done += NEED(recv(pair.client, bytes + done, 50 - done, MSG_DONTWAIT));
        }
        NEED(epoll_ctl(sets[now], EPOLL_CTL_DEL, pair.client, NULL));
        /* In no set. */
        if (left > 1 && round % 2) {
            send_all(pair.client, bytes, 50);
            for (int done = 0; done < 50;)
                done += NEED(recv(pair.client, bytes + done, 50 - done, 0));
            left--;
        }
        if (NEED(epoll_wait(sets[now], &event, 1, 0)) != 0)
            fail("an event of a set that has nothing");
        now ^= round / 64 % 2;
    }
    NEED(-pthread_join(thread, NULL));
    say("%d rounds", ROUNDS);
    return 0;
}
