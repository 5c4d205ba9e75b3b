/* A peer that does anything to the doorbells of one connection does nothing to the rest of a program: its timers, its
 * other descriptors, its other connections. */
#include "transcript.h"

#include <sys/timerfd.h>

enum { ROUNDS = 20, HIGHEST = 4096 };

enum act { FLOODS, EMPTIES, FILLS, ENLARGES, PACKETS, ACTS };
static const char *const acts[] = {"floods", "empties", "fills", "enlarges", "packets"};

enum way { RECEIVED, POLLED, LEVEL, EDGE, WAYS };
static const char *const ways[] = {"received", "polled", "level", "edge"};

/* The library's pipes in this process. */
static int doorbells_of(int *found, int most)
{
    int count = 0;
    for (int fd = 3; fd < HIGHEST && count < most; fd++) {
        struct stat about;
        if (fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR)
            found[count++] = fd;
    }
    return count;
}

static volatile bool has_ended;

struct target {
    enum act act;
    int fd;
};

static void *torments(void *at)
{
    struct target *target = at;
    char bytes[4096] = {0};
    if (target->act == ENLARGES)
        fcntl(target->fd, F_SETPIPE_SZ, 1 << 20);
    if (target->act == PACKETS) {
        fcntl(target->fd, F_SETPIPE_SZ, 1 << 20);
        fcntl(target->fd, F_SETFL, O_RDWR | O_DIRECT | O_NONBLOCK);
    }
    do {
        if (target->act == EMPTIES)
            syscall(SYS_read, target->fd, bytes, sizeof bytes);
        else
            syscall(SYS_write, target->fd, bytes, target->act == FLOODS || target->act == PACKETS ? 1 : sizeof bytes);
    } while (!has_ended);
    return NULL;
}

/* The hostile process, which has one end of a connection, and echoes what comes there until it is to be hostile. */
static void hostile(struct sockaddr_in at, int orders)
{
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
    int on = 1;
    NEED(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    char order;
    char byte;
    do {
        take_all(fd, &byte, 1);
        send_all(fd, &byte, 1);
    } while (byte == 0);
    int bells[8], count = doorbells_of(bells, 8);
    if (eager() && count < 2) {
        errno = ENOENT;
        fail("there are no doorbells");
    }
    struct target targets[8];
    pthread_t threads[8];
    NEED(read(orders, &order, 1));
    for (int at = 0; at < count; at++) {
        targets[at] = (struct target){order - 'a', bells[at]};
        NEED(-pthread_create(&threads[at], NULL, torments, &targets[at]));
    }
    if (order - 'a' == EMPTIES)
        for (int round = 0; round < 50; round++) {
            /* Its wake-ups may be lost, and nothing else. */
            usleep(200);
            send_all(fd, "x", 1);
        }
    NEED(read(orders, &order, 1));
    has_ended = true;
    for (int at = 0; at < count; at++)
        pthread_join(threads[at], NULL);
    NEED(read(orders, &order, 1));
    _exit(0);
}

static void *sends_slowly(void *at)
{
    for (int round = 0; round < ROUNDS; round++) {
        usleep(1000);
        send_all(*(int *)at, "m", 1);
    }
    return NULL;
}

static double cpu(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int tormented, timer, messages;

/* One descriptor that can be read, of the timer and the good connection; the tormented one is read on the side. */
static int next(enum way way, int set)
{
    char bytes[64];
    for (;;) {
        if (way == POLLED) {
            struct pollfd all[] = {{tormented, POLLIN, 0}, {timer, POLLIN, 0}, {messages, POLLIN, 0}};
            NEED(poll(all, 3, -1));
            if (all[0].revents)
                NEED(recv(tormented, bytes, sizeof bytes, MSG_DONTWAIT));
            if (all[1].revents)
                return timer;
            if (all[2].revents)
                return messages;
        } else {
            struct epoll_event event;
            NEED(epoll_wait(set, &event, 1, -1));
            if (event.data.fd != tormented)
                return event.data.fd;
            while (recv(tormented, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
                continue;
        }
    }
}

static void suffers(enum way way)
{
    int set = -1;
    if (way == LEVEL || way == EDGE) {
        unsigned edge = way == EDGE ? EPOLLET : 0;
        set = NEED(epoll_create1(EPOLL_CLOEXEC));
        NEED(add(set, tormented, EPOLLIN | edge, tormented));
        NEED(add(set, timer, EPOLLIN | edge, timer));
        NEED(add(set, messages, EPOLLIN | edge, messages));
    }
    int ticks = 0, came = 0;
    long long expired;
    char byte;
    while (ticks < 10 || came < ROUNDS) {
        if (next(way, set) == timer) {
            while (read(timer, &expired, sizeof expired) > 0)
                ticks++;
        } else {
            while (recv(messages, &byte, 1, MSG_DONTWAIT) == 1)
                came++;
        }
    }
    say("%s: ticks %d, messages %d", ways[way], ticks >= 10, came);
    if (set >= 0)
        close(set);
}

/* A read with a time limit ends by it. */
static void limited_read(void)
{
    char byte;
    NEED(setsockopt(tormented, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 50000}, sizeof(struct timeval)));
    ssize_t got;
    do
        got = recv(tormented, &byte, 1, 0);
    while (got > 0);
    say("received: %zd %s", got, strerrorname_np(errno));
    NEED(setsockopt(tormented, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 0}, sizeof(struct timeval)));
}

static void all_ways(enum act act)
{
    struct sockaddr_in at;
    int listener = listening(&at), orders[2];
    NEED(pipe2(orders, O_CLOEXEC));
    pid_t child = NEED(fork());
    if (child == 0)
        hostile(at, orders[0]);
    close(orders[0]);
    tormented = NEED(accept(listener, NULL, NULL));
    close(listener);
    /* As `warm` has it. */
    long end = milliseconds() + PATIENCE_MS;
    char warm = 0;
    for (int calm = 0; calm < 4 && milliseconds() < end; usleep(eager() ? 500 : 0)) {
        uint64_t before = came_by_tcp(tormented);
        send_all(tormented, &warm, 1);
        take_all(tormented, &warm, 1);
        calm = !eager() || came_by_tcp(tormented) == before ? calm + 1 : 0;
    }
    warm = 1;
    send_all(tormented, &warm, 1);
    take_all(tormented, &warm, 1);
    struct pair good = promoted();
    messages = good.server;
    timer = NEED(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    NEED(timerfd_settime(timer, 0, &often, NULL));
    say("# %s", acts[act]);
    char order = 'a' + act;
    NEED(write(orders[1], &order, 1));
    for (enum way way = RECEIVED; way < WAYS; way++) {
        pthread_t thread;
        if (way == RECEIVED) {
            limited_read();
            continue;
        }
        NEED(-pthread_create(&thread, NULL, sends_slowly, &good.client));
        suffers(way);
        pthread_join(thread, NULL);
    }
    NEED(write(orders[1], "e", 1));
    pause_ms(20);
    /* Peace. */
    for (int round = 0; round < 40; round++)
        poll(&(struct pollfd){tormented, POLLIN, 0}, 1, 1);
    double before = cpu();
    poll(&(struct pollfd){tormented, POLLIN, 0}, 1, 100);
    say("idle at the end: %d", cpu() - before < 0.05);
    NEED(write(orders[1], "e", 1));
    status_of(child);
    char bytes[256];
    ssize_t got;
    while ((got = recv(tormented, bytes, sizeof bytes, 0)) > 0)
        continue;
    say("ended: %zd", got);
    int all[] = {tormented, timer, good.client, good.server, orders[1]};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        close(all[at]);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (enum act act = FLOODS; act < ACTS; act++)
        all_ways(act);
    return 0;
}
