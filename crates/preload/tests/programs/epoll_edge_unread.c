/* Edge-triggered epoll, and bytes that the program was told of and leaves where they are: nobody
 * is told of them again, nobody is kept busy by them, and waits go on to end in time and to hear
 * of everything else. */
#include "transcript.h"

static void arrives(struct pair pair, int set, const char *bytes)
{
    SHOW(send(pair.client, bytes, strlen(bytes), 0));
    show_epoll("arrival", set, -1);
}

static void told_already(int set, int times)
{
    for (int round = 0; round < times; round++)
        show_epoll("told already", set, 1);
}

static void by_one_that_hears_of_others(void)
{
    struct pair pair = promoted();
    char bytes[64];
    int other[2];
    int set = NEED(epoll_create1(0));
    NEED(pipe(other));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    SHOW(add(set, other[0], EPOLLIN, 2));
    arrives(pair, set, "abc");
    /* More sleeps than a quiet connection is looked at. */
    told_already(set, 40);
    SHOW(write(other[1], "x", 1));
    show_epoll("the other", set, -1);
    SHOW(read(other[0], bytes, sizeof bytes));
    for (int round = 0; round < 3; round++) {
        arrives(pair, set, "def");
        told_already(set, 20);
    }
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    arrives(pair, set, "ghi");
    SHOW(shutdown(pair.client, SHUT_WR));
    show_epoll("the end beside the rest", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
}

static void *waits(void *set)
{
    struct epoll_event event;
    int count;
    while ((count = epoll_wait(*(int *)set, &event, 1, 300)) < 0 && errno == EINTR)
        ;
    return (void *)(long)count;
}

static void by_threads_that_sleep(void)
{
    struct pair pair = promoted();
    char bytes[16];
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    for (int threads = 1; threads < 4; threads += 2) {
        arrives(pair, set, "unread");
        struct timespec before, after;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        pthread_t waiting[4];
        for (int at = 0; at < threads; at++)
            pthread_create(&waiting[at], NULL, waits, &set);
        long woken = 0;
        for (int at = 0; at < threads; at++) {
            void *count;
            pthread_join(waiting[at], &count);
            woken += (long)count;
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        long spent = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
        say("woken: %ld, the core: %s", woken, spent < 150 ? "idle" : "busy");
        arrives(pair, set, "more");
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_bytes("recv", bytes, 10);
    }
}

int main(void)
{
    by_one_that_hears_of_others();
    by_threads_that_sleep();
    return 0;
}
