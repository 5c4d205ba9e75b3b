/* One thread sleeps in a set, another one reads, answers and re-enables the connection, as servers do that hand ready
 * connections to workers: that does not end the sleep.
 * spins: 200 */
#include "transcript.h"

enum { ROUNDS = 64, CHANGES = 40 };

static int set;
static volatile pid_t waiter;
static volatile int reported;
static volatile bool ends;

static void *waits(void *none)
{
    struct epoll_event event;
    waiter = gettid();
    while (!ends)
        if (NEED(epoll_wait(set, &event, 1, -1)) == 1)
            __sync_fetch_and_add(&reported, 1);
    return none;
}

/* Until the next report, however long that takes. */
static void awaited(int before)
{
    while (reported == before)
        sched_yield();
}

/* How often the thread has slept. */
static long sleeps(void)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", waiter);
    int fd = NEED(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t length = NEED(read(fd, text, sizeof text - 1));
    close(fd);
    text[length] = 0;
    const char *line = strstr(text, "\nvoluntary_ctxt_switches:");
    return line ? strtol(strchr(line, ':') + 1, NULL, 10) : -1;
}

static void enable(struct pair pair)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    NEED(epoll_ctl(set, EPOLL_CTL_MOD, pair.server, &event));
}

int main(void)
{
    struct pair pair = promoted();
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    set = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, pair.server, &event));
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, waits, NULL));
    char byte = 'x';
    for (int round = 0; round < ROUNDS; round++) {
        int before = reported;
        send_all(pair.client, &byte, 1);
        awaited(before);
        take_all(pair.server, &byte, 1);
        send_all(pair.server, &byte, 1);
        take_all(pair.client, &byte, 1);
        enable(pair);
    }
    say("reported: %d", reported);
    wait_until(waiter, 'S');
    long before = sleeps();
    for (int change = 0; change < CHANGES; change++) {
        enable(pair);
        wait_until(waiter, 'S');
    }
    say("sleeps ended: %ld", sleeps() - before);
    /* Bytes that came while it was disabled do end one. */
    before = reported;
    send_all(pair.client, &byte, 1);
    awaited(before);
    send_all(pair.client, &byte, 1);
    wait_until(waiter, 'S');
    before = reported;
    ends = true;
    enable(pair);
    awaited(before);
    pthread_join(thread, NULL);
    close(pair.client);
    close(pair.server);
    return 0;
}
