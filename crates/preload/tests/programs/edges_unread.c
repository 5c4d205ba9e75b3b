/* Edge-triggered, with several threads that wait in one set, while bytes that were told of stay
 * unread: nobody is told of them again, and nobody is kept busy by them. */
#include "transcript.h"

static int set;

static void *waits(void *unused)
{
    (void)unused;
    struct epoll_event event;
    int count;
    while ((count = epoll_wait(set, &event, 1, 300)) < 0 && errno == EINTR)
        ;
    return (void *)(long)count;
}

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    for (int threads = 1; threads < 4; threads += 2) {
        SHOW(send(pair.client, "unread", 6, 0));
        show_epoll("told", set, -1);
        struct timespec before, after;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        pthread_t waiting[4];
        for (int at = 0; at < threads; at++)
            pthread_create(&waiting[at], NULL, waits, NULL);
        long woken = 0;
        for (int at = 0; at < threads; at++) {
            void *count;
            pthread_join(waiting[at], &count);
            woken += (long)count;
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        long spent = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
        say("woken: %ld, the core: %s", woken, spent < 150 ? "idle" : "busy");
        SHOW(send(pair.client, "more", 4, 0));
        show_epoll("told again", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_bytes("recv", bytes, 10);
    }
    return 0;
}
