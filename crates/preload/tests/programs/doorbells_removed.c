/* A connection that was taken out of an epoll set, which is never waited in again, is woken by its doorbell where the program
 * waits for it by itself. */
#include "transcript.h"
#include <poll.h>
#include <sys/epoll.h>

enum { ENOUGH = 4, LAST = 'q' };
enum way { BLOCKING, POLLED, IN_SET, WAYS };
static const char *const names[] = {"blocking", "polled", "in a set"};

static struct pair pair;
static int set;

/* Answers each byte a while later, when the other end sleeps. */
static void *answers(void *unused)
{
    char byte = 0;
    while (byte != LAST) {
        take_all(pair.server, &byte, 1);
        usleep(500);
        send_all(pair.server, &byte, 1);
    }
    return unused;
}

/* Until several answers in a row have come without a byte over TCP, if it is promoted. */
static void exchange(enum way way)
{
    long end = milliseconds() + PATIENCE_MS;
    int calm = 0, wrong = 0;
    while (calm < ENOUGH && milliseconds() < end) {
        uint64_t before = came_by_tcp(pair.client) + came_by_tcp(pair.server);
        char sent = calm, got = -1;
        struct pollfd one = {pair.client, POLLIN, 0};
        struct epoll_event event;
        send_all(pair.client, &sent, 1);
        if (way == POLLED)
            NEED(poll(&one, 1, -1));
        else if (way == IN_SET)
            NEED(epoll_wait(set, &event, 1, -1));
        take_all(pair.client, &got, 1);
        wrong += got != sent;
        calm = !eager() || came_by_tcp(pair.client) + came_by_tcp(pair.server) == before ? calm + 1 : 0;
    }
    say("%s: wrong %d, by doorbells %d", names[way], wrong, calm == ENOUGH);
}

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
