/* A thread that slept on a connection is gone, by pthread_cancel(3) or siglongjmp(3), and others wait for it in ways that
 * have no doorbell. */
#include "transcript.h"

#include <setjmp.h>

static struct pair pair;
static volatile pid_t sleeper;
static sigjmp_buf away;

static void leaps(int signal)
{
    (void)signal;
    siglongjmp(away, 1);
}

static void *reads(void *none)
{
    char byte;
    sleeper = gettid();
    NEED(recv(pair.server, &byte, 1, 0));
    return none;
}

static void *polls(void *none)
{
    sleeper = gettid();
    NEED(poll(&(struct pollfd){pair.server, POLLIN, 0}, 1, -1));
    return none;
}

static void *waits(void *set)
{
    struct epoll_event event;
    return (void *)(long)epoll_wait(*(int *)set, &event, 1, 10000);
}

enum how { CANCELLED, POLL_CANCELLED, LEAPT, POLL_LEAPT, HOWS };
enum where { ALONE, CROWD, EXCLUSIVE, NESTED, SELECTED, WHERES };
static const char *const hows[] = {"cancelled", "poll cancelled", "leapt", "poll leapt"};
static const char *const wheres[] = {"alone", "crowd", "exclusive", "nested", "selected"};

/* Once that thread sleeps. */
static void *interrupts(void *of)
{
    until_asleep(&sleeper);
    pthread_kill(*(pthread_t *)of, SIGUSR1);
    return NULL;
}

static void sleep_and_leave(enum how how)
{
    pthread_t thread, own = pthread_self();
    void *(*sleeps)(void *) = how == CANCELLED || how == LEAPT ? reads : polls;
    sleeper = 0;
    if (how == CANCELLED || how == POLL_CANCELLED) {
        NEED(-pthread_create(&thread, NULL, sleeps, NULL));
        until_asleep(&sleeper);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        return;
    }
    NEED(-pthread_create(&thread, NULL, interrupts, &own));
    if (sigsetjmp(away, 1) == 0)
        sleeps(NULL);
    pthread_join(thread, NULL);
}

static void one(enum how how, enum where where)
{
    struct pair other = promoted();
    pair = promoted();
    int set = NEED(epoll_create1(0)), outer = set;
    pthread_t first, second;
    if (where == CROWD) {
        NEED(add(set, other.server, EPOLLIN, 9));
        NEED(-pthread_create(&first, NULL, waits, &set));
        NEED(-pthread_create(&second, NULL, waits, &set));
        pause_ms(20);
    }
    sleep_and_leave(how);
    long ready;
    if (where == SELECTED) {
        fd_set to_read;
        FD_ZERO(&to_read);
        FD_SET(pair.server, &to_read);
        send_all(pair.client, "x", 1);
        ready = select(pair.server + 1, &to_read, NULL, NULL, &(struct timeval){10, 0});
    } else {
        NEED(add(set, pair.server, EPOLLIN | (where == EXCLUSIVE ? EPOLLEXCLUSIVE : 0), 1));
        if (where == NESTED) {
            outer = NEED(epoll_create1(0));
            NEED(add(outer, set, EPOLLIN, 3));
        }
        if (where != CROWD)
            NEED(-pthread_create(&first, NULL, waits, &outer));
        pause_ms(20);
        send_all(pair.client, "x", 1);
        void *result;
        pthread_join(first, &result);
        ready = (long)result;
        if (where == CROWD) {
            pthread_join(second, &result);
            ready += (long)result;
        }
    }
    say("%s, %s: %ld", hows[how], wheres[where], ready);
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    int all[] = {pair.client, pair.server, other.client, other.server, set, outer};
    for (size_t at = 0; at < sizeof all / sizeof all[0] - (outer == set); at++)
        close(all[at]);
}

int main(void)
{
    struct sigaction action = {.sa_handler = leaps};
    NEED(sigaction(SIGUSR1, &action, NULL));
    for (enum where where = ALONE; where < WHERES; where++)
        for (enum how how = CANCELLED; how < HOWS; how++)
            one(how, where);
    return 0;
}
