/* Several threads wait for one connection, each in a way of its own. Whoever is woken takes a part of what came, and
 * does not come back before the others have taken the rest. Then random threads change a set,
 * read beside it and wait in it, and each message is answered.
 * also: auto */
#include "transcript.h"
#include <stdatomic.h>
#include <sys/eventfd.h>

enum { POLL, SELECT, RECV, SET, WAYS, THREADS = 3, MESSAGE = 12, PART = 4 };
static const char *ways[] = {"poll", "select", "recv", "set"};

static struct pair pair;
static int set;
static atomic_int taken, round_now;

static ssize_t take(int way)
{
    char bytes[PART];
    struct pollfd fds[2] = {{.fd = pair.server, .events = POLLIN}, {.fd = -1}};
    struct epoll_event told;
    fd_set read;
    switch (way) {
    case POLL:
        poll(fds, 2, -1);
        break;
    case SELECT:
        FD_ZERO(&read);
        FD_SET(pair.server, &read);
        select(pair.server + 1, &read, NULL, NULL, NULL);
        break;
    case SET:
        epoll_wait(set, &told, 1, -1);
        break;
    }
    return recv(pair.server, bytes, PART, way == RECV ? 0 : MSG_DONTWAIT);
}

static void *takes(void *argument)
{
    long way = (long)argument;
    for (;;) {
        int before = round_now;
        ssize_t took = take(way);
        if (took == 0)
            return NULL;
        if (took < 0)
            continue;
        if (atomic_fetch_add(&taken, took) + took == MESSAGE) {
            NEED(send(pair.server, "done", 4, 0));
            continue;
        }
        while (round_now == before)
            usleep(100);
    }
}

static void in_parts(const int *how, int rounds)
{
    char bytes[MESSAGE] = {0};
    pthread_t threads[THREADS];
    int done = 0;
    pair = promoted();
    set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, takes, (void *)(long)how[at]);
    for (int round = 0; round < rounds; round++) {
        if (round % 3 == 0)
            usleep(1500);
        taken = 0;
        struct pollfd one = {.fd = pair.client, .events = POLLIN};
        NEED(send(pair.client, bytes, MESSAGE, 0));
        if (poll(&one, 1, 5000) != 1)
            break;
        take_all(pair.client, bytes, 4);
        done++;
        round_now++;
    }
    say("%s, %s, %s: %d rounds", ways[how[0]], ways[how[1]], ways[how[2]], done);
    if (done < rounds)
        _exit(5);
    NEED(shutdown(pair.client, SHUT_WR));
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    close(pair.client);
    close(pair.server);
    close(set);
}

enum { CONNECTIONS = 3, END = CONNECTIONS, TURNS = 3 };
static struct pair pairs[CONNECTIONS];
static unsigned interest;
static atomic_bool over;
static atomic_int message;

/* Each message is a byte, and each thread that gets one answers it. */
static void answer(int at)
{
    char byte;
    while (recv(pairs[at].server, &byte, 1, MSG_DONTWAIT) == 1)
        NEED(send(pairs[at].server, &byte, 1, 0));
}

static void answer_told(int count, struct epoll_event *told)
{
    for (int at = 0; at < count; at++) {
        if (told[at].data.u64 == END)
            return;
        answer(told[at].data.u64);
        if (interest & EPOLLONESHOT)
            modify(set, pairs[told[at].data.u64].server, interest, told[at].data.u64);
    }
}

static void *waits(void *most)
{
    struct epoll_event told[END + 1];
    while (!over)
        answer_told(epoll_wait(set, told, (long)most, -1), told);
    return NULL;
}

/* Others do a few things a message: what they leave is the waiters'. */
static void until_next(int *last, int turn)
{
    if (turn % TURNS != 0)
        return;
    while (message == *last && !over)
        usleep(50);
    *last = message;
}

/* As those who try to read before they wait. */
static void *speculates(void *seed)
{
    unsigned random = (unsigned)(long)seed;
    for (int turn = 0, last = -1; !over; turn++) {
        until_next(&last, turn);
        answer(rand_r(&random) % CONNECTIONS);
        if (rand_r(&random) % 4 == 0)
            usleep(rand_r(&random) % 100);
    }
    return NULL;
}

/* What it takes away from the set it gives back. */
static void *disturbs(void *seed)
{
    unsigned random = (unsigned)(long)seed;
    for (int turn = 0, last = -1; !over; turn++) {
        until_next(&last, turn);
        int at = rand_r(&random) % CONNECTIONS, fd = pairs[at].server;
        struct pollfd one = {.fd = fd, .events = POLLIN};
        struct epoll_event told[END + 1];
        switch (rand_r(&random) % 6) {
        case 0:
            modify(set, fd, 0, at);
            usleep(rand_r(&random) % 200);
            modify(set, fd, interest, at);
            break;
        case 1:
            epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
            usleep(rand_r(&random) % 200);
            add(set, fd, interest, at);
            break;
        case 2:
            if (poll(&one, 1, rand_r(&random) % 3) == 1)
                answer(at);
            break;
        case 3:
            answer_told(epoll_wait(set, told, 1, 0), told);
            break;
        case 4:
            answer(at);
            break;
        case 5:
            usleep(rand_r(&random) % 1000);
            break;
        }
    }
    return NULL;
}

/* `waiters` in the set at a time, each for `most` events. */
static void at_random(unsigned seed, unsigned events, int waiters, long most)
{
    pthread_t threads[6];
    int count = 0, done = 0;
    unsigned random = seed;
    over = false;
    interest = EPOLLIN | events;
    set = NEED(epoll_create1(0));
    int end = NEED(eventfd(0, 0));
    NEED(add(set, end, EPOLLIN, END));
    for (int at = 0; at < CONNECTIONS; at++) {
        pairs[at] = promoted();
        NEED(add(set, pairs[at].server, interest, at));
    }
    for (int at = 0; at < waiters; at++)
        pthread_create(&threads[count++], NULL, waits, (void *)most);
    if (seed % 3 != 1)
        pthread_create(&threads[count++], NULL, disturbs, (void *)(long)seed);
    if (seed % 3 != 2)
        pthread_create(&threads[count++], NULL, speculates, (void *)(long)(seed + 1));
    for (; done < 150; done++) {
        char byte = 'x';
        int fd = pairs[rand_r(&random) % CONNECTIONS].client;
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (rand_r(&random) % 4 == 0)
            usleep(rand_r(&random) % 500);
        NEED(send(fd, &byte, 1, 0));
        message++;
        if (poll(&one, 1, 5000) != 1 || recv(fd, &byte, 1, 0) != 1)
            break;
    }
    say("seed %u: %d", seed, done);
    if (done < 150)
        _exit(5);
    over = true;
    NEED(eventfd_write(end, 1));
    while (count > 0)
        pthread_join(threads[--count], NULL);
    for (int at = 0; at < CONNECTIONS; at++) {
        close(pairs[at].client);
        close(pairs[at].server);
    }
    close(set);
    close(end);
}

int main(void)
{
    static const unsigned kinds[] = {0, EPOLLET, EPOLLONESHOT};
    static const int mixed[][THREADS] = {{POLL, RECV, SET}, {SET, RECV, RECV}, {SET, POLL, POLL}};
    for (int way = 0; way < WAYS; way++)
        in_parts((int[]){way, way, way}, 30);
    for (int at = 0; at < 3; at++)
        in_parts(mixed[at], 30);
    for (unsigned seed = 0; seed < 24; seed++)
        at_random(seed, kinds[seed / 3 % 3], 1 + seed % 2, 1 + seed % 4);
    return 0;
}
