/* EPOLLEXCLUSIVE: the same socket in sets of several threads. */
#include "transcript.h"

static int sets[2];
static int woken;
static volatile pid_t ids[2];
static struct pair pair;

static void *waits(void *argument)
{
    struct epoll_event event;
    ids[(int *)argument - sets] = gettid();
    if (epoll_wait(*(int *)argument, &event, 1, PATIENCE_MS) == 1) {
        char byte;
        if (recv(pair.server, &byte, 1, MSG_DONTWAIT) == 1)
            __atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

int main(void)
{
    pair = promoted();
    pthread_t threads[2];
    for (int at = 0; at < 2; at++) {
        sets[at] = NEED(epoll_create1(0));
        SHOW(add(sets[at], pair.server, EPOLLIN | EPOLLEXCLUSIVE, at));
        SHOW(modify(sets[at], pair.server, EPOLLIN, at));
        pthread_create(&threads[at], NULL, waits, &sets[at]);
    }
    for (int at = 0; at < 2; at++)
        until_asleep(&ids[at]);
    SHOW(send(pair.client, "x", 1, 0));
    for (int looks = 0; looks < PATIENCE_MS && !__atomic_load_n(&woken, __ATOMIC_SEQ_CST); looks++)
        pause_ms(1);
    SHOW(send(pair.client, "y", 1, 0));
    for (int at = 0; at < 2; at++)
        pthread_join(threads[at], NULL);
    say("bytes taken: %d", woken);
    int set = NEED(epoll_create1(0));
    SHOW(add(set, pair.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
    SHOW(add(set, pair.client, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 1));
    SHOW(send(pair.server, "z", 1, 0));
    show_epoll("exclusive and edge-triggered", set, -1);
    show_epoll("told already", set, 20);
    return 0;
}
