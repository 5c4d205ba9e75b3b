/* Each message arrives, and all threads sleep between them, while connections go from one epoll set to another, are taken
 * out, masked and put in again, duplicated and replaced, while ranges of descriptors are closed and children come and go. */
#include "transcript.h"

#include <semaphore.h>
#include <spawn.h>
#include <sys/eventfd.h>

enum { PAIRS = 16, SETS = 4, SENDERS = 4, MESSAGES = 150, MOVERS = 2 };

extern char **environ;

struct line {
    pthread_mutex_t lock;
    sem_t arrived;
    struct pair pair;
    int set;
    unsigned events;
    uint32_t got;
    const char *last;
};

static struct line lines[PAIRS];
static int sets[SETS], stop;
/* Of a hundred things to do, so many are done. */
static uint32_t most;
static volatile bool has_ended;

static uint32_t below(uint64_t *state, uint32_t bound)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (*state >> 20) % bound;
}

/* Reads what is there. */
static void drain(struct line *line)
{
    uint32_t number;
    pthread_mutex_lock(&line->lock);
    while (recv(line->pair.server, &number, sizeof number, MSG_DONTWAIT) == sizeof number) {
        if (number != line->got++)
            fail("their order");
        sem_post(&line->arrived);
    }
    pthread_mutex_unlock(&line->lock);
}

/* A waiter of one set: way 0 sleeps in it, 1 in poll(2) of it, 2 in a set that has it. */
struct waiter {
    int set, way, most;
};

static void *waits(void *at)
{
    struct waiter *waiter = at;
    int outer = NEED(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event events[8];
    NEED(add(outer, waiter->set, EPOLLIN, 0));
    while (!has_ended) {
        if (waiter->way == 1)
            NEED(poll(&(struct pollfd){waiter->set, POLLIN, 0}, 1, -1));
        else if (waiter->way == 2)
            epoll_wait(outer, events, 1, -1);
        int count = epoll_wait(waiter->set, events, waiter->most, waiter->way ? 0 : -1);
        /* SIGSTOP and SIGCONT end it, too (signal(7)). */
        if (count < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int each = 0; each < count; each++)
            if (events[each].data.u64 < PAIRS)
                drain(&lines[events[each].data.u64]);
    }
    close(outer);
    return NULL;
}

static void *sends(void *at)
{
    struct line *own = at;
    uint64_t state = 88172645463325252ull + (own - lines);
    for (uint32_t number = 0; number < MESSAGES; number++)
        for (struct line *line = own; line < own + PAIRS / SENDERS; line++) {
            send_all(line->pair.client, &number, sizeof number);
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 10;
            if (sem_timedwait(&line->arrived, &until) < 0) {
                fprintf(stderr, "message %u of line %zd, after %s, events %x\n", number, line - lines, line->last,
                        line->events);
                fail("a message is lost");
            }
            if (below(&state, 4) == 0)
                usleep(below(&state, 400));
        }
    return NULL;
}

static void move_one(uint64_t *state)
{
    size_t place = below(state, PAIRS);
    struct line *line = &lines[place];
    uint32_t what = below(state, most);
    pthread_mutex_lock(&line->lock);
    int fd = line->pair.server, to = sets[below(state, SETS)];
    unsigned events = EPOLLIN | (below(state, 2) ? EPOLLET : 0);
    if (what < 40) {
        line->last = "a move";
        NEED(epoll_ctl(line->set, EPOLL_CTL_DEL, fd, NULL));
        NEED(add(to, fd, events, place));
        line->set = to;
    } else if (what < 60) {
        line->last = "a change";
        NEED(modify(line->set, fd, below(state, 2) ? 0 : EPOLLOUT | EPOLLONESHOT, place));
        NEED(modify(line->set, fd, events, place));
    } else if (what < 70) {
        /* In two sets for a moment. */
        line->last = "two sets";
        if (to != line->set) {
            NEED(add(to, fd, events, place));
            NEED(epoll_ctl(line->set, EPOLL_CTL_DEL, fd, NULL));
            line->set = to;
        }
    } else if (what < 80) {
        line->last = "a copy";
        NEED(epoll_ctl(line->set, EPOLL_CTL_DEL, fd, NULL));
        int copy = NEED(dup(fd));
        close(fd);
        line->pair.server = copy;
        NEED(add(line->set, copy, events, place));
    } else if (what < 86) {
        line->last = "a copy onto it";
        NEED(epoll_ctl(line->set, EPOLL_CTL_DEL, fd, NULL));
        int copy = NEED(dup(fd));
        NEED(dup2(copy, fd));
        close(copy);
        NEED(add(line->set, fd, events, place));
    } else if (what < 90) {
        line->last = "close_range";
        close_range(1024, ~0U, 0);
    } else if (what < 93) {
        line->last = "a child";
        pid_t child = NEED(fork());
        if (child == 0)
            _exit(0);
        NEED(waitpid(child, NULL, 0));
    } else if (what < 95) {
        line->last = "a program";
        pid_t child;
        char *arguments[] = {"true", NULL};
        NEED(-posix_spawnp(&child, "true", NULL, NULL, arguments, environ));
        NEED(waitpid(child, NULL, 0));
    }
    line->events = events;
    pthread_mutex_unlock(&line->lock);
}

static void *moves(void *seed)
{
    uint64_t state = 0x9e3779b97f4a7c15ull * (uint64_t)(uintptr_t)seed | 1;
    while (!has_ended) {
        move_one(&state);
        usleep(below(&state, 500));
    }
    return NULL;
}

static void all(const char *name, struct waiter *waiters, int count, long seed, uint32_t things)
{
    most = things;
    pthread_t waiting[8], sending[SENDERS], moving[MOVERS];
    stop = NEED(eventfd(0, EFD_CLOEXEC));
    has_ended = false;
    for (int at = 0; at < SETS; at++)
        sets[at] = NEED(epoll_create1(EPOLL_CLOEXEC));
    for (int at = 0; at < PAIRS; at++) {
        struct line *line = &lines[at];
        line->pair = promoted();
        line->set = sets[at % SETS];
        line->got = 0;
        line->last = "nothing";
        NEED(add(line->set, line->pair.server, EPOLLIN, at));
    }
    for (int at = 0; at < count; at++) {
        waiters[at].set = sets[at % SETS];
        NEED(-pthread_create(&waiting[at], NULL, waits, &waiters[at]));
    }
    for (long at = 0; at < MOVERS; at++)
        NEED(-pthread_create(&moving[at], NULL, moves, (void *)(seed * MOVERS + at + 1)));
    for (int at = 0; at < SENDERS; at++)
        NEED(-pthread_create(&sending[at], NULL, sends, &lines[at * (PAIRS / SENDERS)]));
    for (int at = 0; at < SENDERS; at++)
        pthread_join(sending[at], NULL);
    has_ended = true;
    for (int at = 0; at < MOVERS; at++)
        pthread_join(moving[at], NULL);
    for (int at = 0; at < SETS; at++)
        NEED(add(sets[at], stop, EPOLLIN, 99));
    NEED(write(stop, &(uint64_t){1}, sizeof(uint64_t)));
    for (int at = 0; at < count; at++)
        pthread_join(waiting[at], NULL);
    uint32_t got = 0;
    for (int at = 0; at < PAIRS; at++) {
        got += lines[at].got;
        close(lines[at].pair.client);
        close(lines[at].pair.server);
    }
    for (int at = 0; at < SETS; at++)
        close(sets[at]);
    close(stop);
    say("%s: %u", name, got);
}

int main(int count, char **arguments)
{
    long seed = count > 1 ? atol(arguments[1]) : 1;
    for (int at = 0; at < PAIRS; at++) {
        pthread_mutex_init(&lines[at].lock, NULL);
        sem_init(&lines[at].arrived, 0, 0);
    }
    for (uint32_t things = 60; things <= 100; things += 40) {
        all("one waiter each", (struct waiter[]){{0, 0, 1}, {0, 0, 8}, {0, 0, 1}, {0, 0, 8}}, 4, seed, things);
        all("mixed", (struct waiter[]){{0, 0, 1}, {0, 1, 8}, {0, 2, 8}, {0, 0, 8}}, 4, seed, things);
        all("two in some", (struct waiter[]){{0, 0, 1}, {0, 0, 8}, {0, 0, 1}, {0, 1, 8}, {0, 0, 1}, {0, 2, 1}}, 6, seed, things);
    }
    return 0;
}
