/* Whether an end that sleeps is woken by its doorbell, for each way to wait. */
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
