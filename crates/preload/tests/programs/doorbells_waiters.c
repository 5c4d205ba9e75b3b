/* Several threads that wait for one connection or one set, in different ways, sets that are watched themselves, signals
 * during a sleep, many connections, and few descriptors: all are woken for what comes while they sleep. */
#include "transcript.h"

#include <sys/resource.h>

static struct pair pair;
static int set;
static volatile pid_t first, second;

static void *receives(void *at)
{
    char byte = 0;
    *(volatile pid_t *)at = gettid();
    long got = recv(pair.server, &byte, 1, 0);
    return (void *)(got == 1 ? (long)byte : got);
}

static void *polls(void *at)
{
    struct pollfd one = {pair.server, POLLIN, 0};
    *(volatile pid_t *)at = gettid();
    return (void *)(long)poll(&one, 1, -1);
}

static void *waits(void *at)
{
    struct epoll_event event;
    *(volatile pid_t *)at = gettid();
    return (void *)(long)epoll_wait(set, &event, 1, -1);
}

static void *polls_set(void *at)
{
    struct pollfd one = {set, POLLIN, 0};
    *(volatile pid_t *)at = gettid();
    return (void *)(long)poll(&one, 1, -1);
}

static int outer;

static void *waits_outside(void *at)
{
    struct epoll_event event;
    *(volatile pid_t *)at = gettid();
    long found;
    /* A set that comes to be watched may be called ready once for nothing. */
    do
        found = epoll_wait(outer, &event, 1, -1);
    while (found == 1 && epoll_wait(set, &event, 1, 0) == 0);
    return (void *)found;
}

typedef void *(*body)(void *);

static pthread_t begin(body run, volatile pid_t *at)
{
    pthread_t thread;
    *at = 0;
    NEED(-pthread_create(&thread, NULL, run, (void *)at));
    until_asleep(at);
    return thread;
}

static long ended(pthread_t thread)
{
    void *result;
    pthread_join(thread, &result);
    return (long)result;
}

static void new_pair(unsigned events)
{
    pair = promoted();
    set = NEED(epoll_create1(EPOLL_CLOEXEC));
    if (events)
        NEED(add(set, pair.server, events, 1));
}

static void old_pair(void)
{
    close(pair.client);
    close(pair.server);
    close(set);
}

/* One sleeps, then another; a message for the readers among them each, or one that nobody takes. */
static void two(const char *name, body one, body other, unsigned events)
{
    new_pair(events);
    pthread_t a = begin(one, &first), b = begin(other, &second);
    int readers = (one == receives) + (other == receives);
    send_all(pair.client, "a", 1);
    long got = 0;
    if (readers < 2) {
        /* The reader may be the one that takes it before the other is awake. */
        if (readers == 1) {
            long read = ended(one == receives ? a : b);
            send_all(pair.client, "b", 1);
            got = read == 'a' ? ended(one == receives ? b : a) : -1;
        } else
            got = ended(a) + ended(b);
    } else {
        send_all(pair.client, "b", 1);
        got = ended(a) + ended(b);
    }
    say("%s: %ld", name, got);
    char byte;
    while (recv(pair.server, &byte, 1, MSG_DONTWAIT) == 1)
        continue;
    /* They go on. */
    a = begin(receives, &first);
    send_all(pair.client, "c", 1);
    say("again: %ld", ended(a));
    old_pair();
}

static void watched(void)
{
    new_pair(EPOLLIN);
    /* A sleep of its own first, by which the set is known. */
    struct epoll_event event;
    SHOW(epoll_wait(set, &event, 1, 10));
    pthread_t a = begin(polls_set, &first);
    send_all(pair.client, "a", 1);
    say("polled: %ld", ended(a));
    char byte;
    NEED(recv(pair.server, &byte, 1, 0));
    SHOW(epoll_wait(set, &event, 1, 0));
    outer = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(add(outer, set, EPOLLIN | EPOLLET, 1));
    a = begin(waits_outside, &first);
    send_all(pair.client, "a", 1);
    say("outside: %ld", ended(a));
    NEED(recv(pair.server, &byte, 1, 0));
    /* While one sleeps in it. */
    a = begin(waits, &first);
    pthread_t b = begin(waits_outside, &second);
    send_all(pair.client, "a", 1);
    say("both: %ld %ld", ended(a), ended(b));
    close(outer);
    old_pair();
    /* One that is put in another while a thread sleeps in it. */
    new_pair(EPOLLIN);
    a = begin(waits, &first);
    outer = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(add(outer, set, EPOLLIN, 1));
    b = begin(waits_outside, &second);
    send_all(pair.client, "a", 1);
    say("put in: %ld %ld", ended(a), ended(b));
    close(outer);
    old_pair();
}

/* A message by the set, and many sleeps after it: the connection is no longer looked at without a wake-up. */
static void rest(void)
{
    struct epoll_event event;
    char byte;
    send_all(pair.client, "a", 1);
    if (epoll_wait(set, &event, 1, 5000) != 1)
        fail("a message is not reported");
    NEED(recv(pair.server, &byte, 1, 0));
    for (int sleep = 0; sleep < 40; sleep++)
        NEED(epoll_wait(set, &event, 1, 1));
}

/* A message whose wake-up nobody has seen yet. */
static void announce(void)
{
    rest();
    send_all(pair.client, "a", 1);
}

/* Puts files of the program's own at the numbers of the library's pipes. */
static void take_numbers(int own)
{
    struct rlimit before, all;
    NEED(getrlimit(RLIMIT_NOFILE, &before));
    all = (struct rlimit){before.rlim_max, before.rlim_max};
    NEED(setrlimit(RLIMIT_NOFILE, &all));
    for (int fd = 3; fd < 4096; fd++) {
        struct stat about;
        bool hidden = fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
        if (hidden) {
            NEED(dup2(own, fd));
            NEED(close(fd));
        }
    }
    NEED(setrlimit(RLIMIT_NOFILE, &before));
}

/* What was announced to a set before it changes in that way is there after. */
/* A child that waits in the set of its parent. */
static pid_t waits_in_child(void)
{
    pid_t child = NEED(fork());
    if (child == 0) {
        struct epoll_event event;
        _exit(epoll_wait(set, &event, 1, 5000) == 1 ? 7 : 8);
    }
    return child;
}

static void changed(void)
{
    struct epoll_event event;
    new_pair(EPOLLIN);
    announce();
    outer = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(add(outer, set, EPOLLIN, 1));
    say("put in another: %d", epoll_wait(outer, &event, 1, 5000));
    close(outer);
    old_pair();

    new_pair(EPOLLIN);
    announce();
    say("polled: %d", poll(&(struct pollfd){set, POLLIN, 0}, 1, 5000));
    old_pair();

    new_pair(EPOLLIN);
    int ends[2];
    NEED(pipe(ends));
    announce();
    NEED(add(set, ends[0], EPOLLIN, 1));
    say("two of one datum: %d", epoll_wait(set, &event, 1, 5000));
    old_pair();

    new_pair(EPOLLIN);
    announce();
    take_numbers(ends[0]);
    say("without doorbells: %d", epoll_wait(set, &event, 1, 5000));
    old_pair();

    new_pair(EPOLLIN | EPOLLET);
    announce();
    int other = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(add(other, pair.server, EPOLLIN | EPOLLET, 1));
    say("of two sets: %d", epoll_wait(set, &event, 1, 5000));
    say("the other: %d", epoll_wait(other, &event, 1, 5000));
    old_pair();
    close(other);

    new_pair(EPOLLIN);
    announce();
    close(set);
    set = NEED(epoll_create1(EPOLL_CLOEXEC));
    NEED(add(set, pair.server, EPOLLIN, 1));
    say("made anew: %d", epoll_wait(set, &event, 1, 5000));
    char byte;
    NEED(recv(pair.server, &byte, 1, 0));
    rest();
    pthread_t a = begin(waits, &first);
    send_all(pair.client, "a", 1);
    say("asleep: %ld", ended(a));
    NEED(recv(pair.server, &byte, 1, 0));
    NEED(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
    a = begin(receives, &first);
    send_all(pair.client, "r", 1);
    say("read: %ld", ended(a));
    a = begin(polls, &first);
    send_all(pair.client, "r", 1);
    say("polled: %ld", ended(a));
    NEED(recv(pair.server, &byte, 1, 0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    announce();
    /* In the child the set is its parent's, and so is what announced the message. */
    pid_t child = waits_in_child();
    status_of(child);
    say("the parent: %d", epoll_wait(set, &event, 1, 5000));
    NEED(recv(pair.server, &byte, 1, 0));
    rest();
    child = waits_in_child();
    pause_ms(20);
    send_all(pair.client, "a", 1);
    status_of(child);
    say("the parent: %d", epoll_wait(set, &event, 1, 5000));
    NEED(recv(pair.server, &byte, 1, 0));
    rest();
    /* Both sleep, the child first. */
    child = waits_in_child();
    pause_ms(20);
    a = begin(waits, &first);
    send_all(pair.client, "a", 1);
    say("asleep beside the child: %ld", ended(a));
    status_of(child);
    old_pair();
}

static volatile int handled;

static void handles(int signal)
{
    (void)signal;
    handled++;
}

static void signals(int flags, bool limited)
{
    struct sigaction action = {.sa_handler = handles, .sa_flags = flags};
    NEED(sigaction(SIGUSR1, &action, NULL));
    new_pair(0);
    if (limited)
        NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){20, 0}, sizeof(struct timeval)));
    handled = 0;
    pthread_t a = begin(receives, &first);
    for (int round = 0; round < 3; round++) {
        pthread_kill(a, SIGUSR1);
        for (int tries = 0; handled <= (flags & SA_RESTART && !limited ? round : 0) && tries < 10000; tries++)
            usleep(200);
        if (!(flags & SA_RESTART) || limited)
            break;
        until_asleep(&first);
    }
    if (flags & SA_RESTART && !limited)
        send_all(pair.client, "s", 1);
    say("flags %d, limited %d: %ld, handled %d", flags != 0, limited, ended(a), handled);
    a = begin(receives, &first);
    send_all(pair.client, "t", 1);
    say("again: %ld", ended(a));
    old_pair();
}

static void many(int pairs)
{
    struct pair all[300];
    set = NEED(epoll_create1(EPOLL_CLOEXEC));
    for (int at = 0; at < pairs; at++) {
        all[at] = promoted();
        NEED(add(set, all[at].server, EPOLLIN | (at & 1 ? EPOLLET : 0), at));
    }
    int right = 0;
    for (int at = 0; at < pairs; at++) {
        pthread_t a = begin(waits, &first);
        send_all(all[at * 7 % pairs].client, "m", 1);
        right += ended(a) == 1;
        char byte;
        right += recv(all[at * 7 % pairs].server, &byte, 1, 0) == 1;
    }
    say("%d of %d", right, pairs);
    for (int at = 0; at < pairs; at++) {
        close(all[at].client);
        close(all[at].server);
    }
    close(set);
}

static void allow(rlim_t soft, rlim_t hard)
{
    struct rlimit limit = {soft, hard};
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
}

int main(void)
{
    two("read and wait", receives, waits, EPOLLIN);
    two("wait and read", waits, receives, EPOLLIN);
    two("edges and read", waits, receives, EPOLLIN | EPOLLET);
    two("two reads", receives, receives, 0);
    two("two polls", polls, polls, 0);
    two("poll and wait", polls, waits, EPOLLIN);
    two("wait and poll", waits, polls, EPOLLIN);
    two("poll and read", polls, receives, 0);
    two("two waits", waits, waits, EPOLLIN);
    watched();
    changed();
    for (int limited = 0; limited < 2; limited++) {
        signals(0, limited);
        signals(SA_RESTART, limited);
    }
    many(300);
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    allow(64, limit.rlim_max);
    say("# a low limit");
    many(20);
    allow(1100, limit.rlim_max);
    many(20);
    say("# a low limit that is hard");
    allow(64, 64);
    many(20);
    return 0;
}
