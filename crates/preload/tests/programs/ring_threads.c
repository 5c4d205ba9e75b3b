/* Threads that submit to one ring, while others make rings and close them: each submission is done once, and none goes to the
 * kernel unseen. */
#include "ring.h"
#include <sched.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 150, SEEDS = 4, RESULTS = 1 << 16, UNKNOWN = 1 };

static struct ring ring;
static pthread_mutex_t submitting = PTHREAD_MUTEX_INITIALIZER, completing = PTHREAD_MUTEX_INITIALIZER;
static int results[RESULTS];
static atomic_int wrong;
static volatile bool over;

struct worker {
    pthread_t thread;
    unsigned number, seed;
};

static void reap(void)
{
    struct io_uring_cqe cqe;
    pthread_mutex_lock(&completing);
    while (completed(&ring, &cqe))
        __atomic_store_n(&results[cqe.user_data], cqe.res, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&completing);
}

/* Submits all that is in the queue, whoever put it there, as Rust's io-uring does. */
static void submit_all(void)
{
    unsigned *head = word(&ring, ring.params.sq_off.head), *tail = word(&ring, ring.params.sq_off.tail);
    unsigned count = __atomic_load_n(tail, __ATOMIC_ACQUIRE) - __atomic_load_n(head, __ATOMIC_ACQUIRE);
    if (count > ENTRIES)
        count = ENTRIES;
    if (syscall(SYS_io_uring_enter, ring.fd, count, 0, IORING_ENTER_GETEVENTS, NULL, 0) < 0 && errno != EINTR &&
        errno != EAGAIN && errno != EBUSY)
        fail("enter");
    reap();
}

/* One submission of a worker, and what came of it. */
static int done(struct worker *worker, unsigned round, int operation, int fd, int how, int other, struct epoll_event *event)
{
    unsigned data = worker->number * (RESULTS / THREADS) + round;
    unsigned *head = word(&ring, ring.params.sq_off.head), *tail = word(&ring, ring.params.sq_off.tail);
    __atomic_store_n(&results[data], UNKNOWN, __ATOMIC_RELAXED);
    for (bool queued = false; !queued;) {
        pthread_mutex_lock(&submitting);
        if (*tail - __atomic_load_n(head, __ATOMIC_ACQUIRE) < ENTRIES) {
            ring.queued = 0;
            struct io_uring_sqe *entry = queue(&ring, operation, fd, data);
            entry->len = how;
            entry->off = other;
            entry->addr = (unsigned long)event;
            __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
            queued = true;
        }
        pthread_mutex_unlock(&submitting);
        if (!queued)
            submit_all();
    }
    for (;;) {
        int result = __atomic_load_n(&results[data], __ATOMIC_ACQUIRE);
        if (result != UNKNOWN)
            return result;
        submit_all();
        sched_yield();
    }
}

static int control(struct worker *worker, unsigned round, int set, int how, int fd, struct epoll_event *event)
{
    return done(worker, round, IORING_OP_EPOLL_CTL, set, how, fd, event);
}

static void expect(int got, int wanted)
{
    if (got != wanted)
        wrong++;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    unsigned round = 0, seed = worker->seed * 97 + worker->number;
    int set = NEED(epoll_create1(0));
    struct pair pair = promoted();
    struct epoll_event wanted = {.events = EPOLLIN}, got;
    bool in_set = false;
    while (round < ROUNDS) {
        char byte = 'x';
        wanted.data.u64 = round;
        switch (next_random(&seed) % 4) {
        case 0:
            expect(control(worker, round++, set, EPOLL_CTL_ADD, pair.server, &wanted), in_set ? -EEXIST : 0);
            if (in_set)
                continue;
            in_set = true;
            break;
        case 1:
            expect(control(worker, round++, set, EPOLL_CTL_DEL, pair.server, NULL), in_set ? 0 : -ENOENT);
            in_set = false;
            break;
        case 2:
            if (next_random(&seed) % 8)
                continue;
            expect(done(worker, round++, IORING_OP_SHUTDOWN, pair.server, SHUT_WR, 0, NULL), 0);
            expect(recv(pair.client, &byte, 1, 0), 0);
            expect(done(worker, round++, IORING_OP_CLOSE, pair.server, 0, 0, NULL), 0);
            close(pair.client);
            pair = promoted();
            in_set = false;
            continue;
        default:
            expect(control(worker, round++, set, EPOLL_CTL_MOD, pair.server, &wanted), in_set ? 0 : -ENOENT);
            if (!in_set)
                continue;
        }
        expect(send(pair.client, &byte, 1, 0), 1);
        expect(epoll_wait(set, &got, 1, in_set ? -1 : 0), in_set);
        if (in_set)
            expect(got.data.u64 == wanted.data.u64, true);
        expect(recv(pair.server, &byte, 1, 0), 1);
    }
    close(pair.client);
    close(pair.server);
    close(set);
    return NULL;
}

/* A ring that is closed while another thread submits to it. */
static void *submits_till_closed(void *argument)
{
    int fd = *(int *)argument;
    while (syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0) >= 0)
        sched_yield();
    return NULL;
}

static void *churns(void *argument)
{
    (void)argument;
    while (!over) {
        struct ring other;
        pthread_t thread;
        if (!make(&other, 0))
            fail("a ring");
        if (pthread_create(&thread, NULL, submits_till_closed, &other.fd))
            fail("a thread");
        int copy = NEED(dup(other.fd));
        sched_yield();
        close(other.fd);
        pthread_join(thread, NULL);
        close(copy);
        munmap(other.words, other.length);
        munmap(other.entries, ENTRIES * other.stride);
    }
    return NULL;
}

int main(void)
{
    if (!make(&ring, 0)) {
        say("no ring: %s", strerrorname_np(errno));
        used(promoted());
        return 0;
    }
    pthread_t churn;
    if (pthread_create(&churn, NULL, churns, NULL))
        fail("a thread");
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        struct worker workers[THREADS];
        wrong = 0;
        for (unsigned number = 0; number < THREADS; number++) {
            workers[number] = (struct worker){.number = number, .seed = seed};
            if (pthread_create(&workers[number].thread, NULL, work, &workers[number]))
                fail("a thread");
        }
        for (unsigned number = 0; number < THREADS; number++)
            pthread_join(workers[number].thread, NULL);
        say("seed %u: wrong: %d", seed, wrong);
    }
    over = true;
    pthread_join(churn, NULL);
    /* Nothing of that has ended promotion. */
    used(promoted());
    return 0;
}
