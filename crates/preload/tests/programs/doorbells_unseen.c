/* A program that slept for its messages in calls of libc, and then waits by a system call of its own, is woken by a peer that
 * sleeps for the answer, however that does. */
#include "own_call.h"
#include "transcript.h"

enum { ROUNDS = 20 };

enum way { RECEIVED, POLLED, LEVEL, EDGE, WAYS };
static const char *const names[] = {"received", "polled", "level", "edge"};

static struct pair pair;
static enum way way;

static void answered(int set)
{
    char byte;
    struct epoll_event event;
    if (way == POLLED)
        NEED(poll(&(struct pollfd){pair.server, POLLIN, 0}, 1, -1));
    else if (way != RECEIVED)
        NEED(epoll_wait(set, &event, 1, -1));
    take_all(pair.server, &byte, 1);
}

/* Asks a while after each answer, when the other end sleeps. */
static void *asks(void *none)
{
    int set = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(add(set, pair.server, EPOLLIN | (way == EDGE ? EPOLLET : 0), 1));
    if (way == RECEIVED || way == POLLED)
        NEED(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
    for (int round = 0; round < 2 * ROUNDS; round++) {
        usleep(500);
        send_all(pair.server, "q", 1);
        answered(set);
    }
    close(set);
    return none;
}

/* Until something can be read, past the library. */
static int wait_unseen(int round, int set)
{
    struct pollfd one = {pair.client, POLLIN, 0};
    struct epoll_event event;
    struct timespec most = {10, 0};
    return round % 2 ? own_call(SYS_ppoll, (long)&one, 1, (long)&most, 0, 0)
                     : own_call(SYS_epoll_pwait, set, (long)&event, 1, 10000, 0);
}

int main(void)
{
    for (way = RECEIVED; way < WAYS; way++) {
        pair = promoted();
        pthread_t thread;
        NEED(-pthread_create(&thread, NULL, asks, NULL));
        char byte;
        int set = NEED(own_call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0)), woken = 0;
        struct epoll_event event = {.events = EPOLLIN};
        for (int round = 0; round < 2 * ROUNDS; round++) {
            if (round == ROUNDS)
                NEED(own_call(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair.client, (long)&event, 0));
            if (round >= ROUNDS)
                woken += wait_unseen(round, set) == 1;
            take_all(pair.client, &byte, 1);
            send_all(pair.client, "a", 1);
        }
        pthread_join(thread, NULL);
        say("%s: %d", names[way], woken);
        close(set);
        close(pair.client);
        close(pair.server);
    }
    return 0;
}
