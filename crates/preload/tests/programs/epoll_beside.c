/* A thread sleeps in an epoll set that has two connections, and another thread, or another process,
 * does something with one of them. What comes on the other connection is answered all the same.
 * also: auto */
#include "transcript.h"

enum { LEVEL, EDGE, ONCE, NESTED, OUTSIDE, KINDS };
static const char *kinds[] = {"level", "edge", "once", "nested", "outside"};

static int set, outer, kind;
static struct pair a, b;
static volatile pid_t waiter;
static volatile bool kept_out, over;

static unsigned events(void)
{
    return EPOLLIN | (kind == EDGE ? EPOLLET : 0) | (kind == ONCE ? EPOLLONESHOT : 0);
}

static int wait_in_set(struct epoll_event *events, int most)
{
    struct pollfd one = {.fd = set, .events = POLLIN};
    if (kind == NESTED && epoll_wait(outer, events, 1, -1) < 1)
        return 0;
    if (kind == OUTSIDE && poll(&one, 1, -1) < 1)
        return 0;
    return epoll_wait(set, events, most, kind == NESTED || kind == OUTSIDE ? 0 : -1);
}

/* Answers what comes, on connection 1 unless that is somebody else's for now. */
static void *waits(void *nothing)
{
    waiter = syscall(SYS_gettid);
    while (!over) {
        struct epoll_event told[4];
        int count = wait_in_set(told, 4);
        for (int at = 0; at < count; at++) {
            char byte;
            int fd = told[at].data.u64 == 1 ? a.server : b.server;
            if (told[at].data.u64 == 1 && kept_out)
                continue;
            while (recv(fd, &byte, 1, MSG_DONTWAIT) == 1)
                send(fd, &byte, 1, MSG_NOSIGNAL);
            if (kind == ONCE)
                modify(set, fd, events(), told[at].data.u64);
        }
    }
    return nothing;
}

static bool answered(int fd)
{
    char byte = 'x';
    struct pollfd one = {.fd = fd, .events = POLLIN};
    NEED(send(fd, &byte, 1, 0));
    return poll(&one, 1, 5000) == 1 && recv(fd, &byte, 1, 0) == 1;
}

static bool more_answered(int fd, int rounds)
{
    bool all = true;
    for (int round = 0; round < rounds; round++)
        all &= answered(fd);
    return all;
}

/* What comes on the first connection goes to this thread. */
static void steal(int count, bool blocking)
{
    char bytes[16] = {0};
    NEED(send(a.client, bytes, count, 0));
    for (int taken = 0; taken < count;) {
        ssize_t took = recv(a.server, bytes, 1 + count / 2, blocking ? 0 : MSG_DONTWAIT);
        taken += took > 0 ? took : 0;
    }
    recv(a.server, bytes, 1, MSG_DONTWAIT);
}

static void *sends_one(void *nothing)
{
    usleep(2000);
    NEED(send(a.client, "y", 1, 0));
    return nothing;
}

static void taken_out(void) { NEED(epoll_ctl(set, EPOLL_CTL_DEL, a.server, NULL)); }
static void masked(void) { NEED(modify(set, a.server, 0, 1)); }
static void changed(void) { NEED(modify(set, a.server, EPOLLRDHUP | EPOLLET, 1)); }
static void received(void) { steal(1, false); }
static void received_in_pieces(void) { steal(10, false); }
static void received_blocking(void) { steal(2, true); }
static void closed(void) { close(a.server); }
static void shut(void) { NEED(shutdown(a.server, SHUT_RD)); }
static void half_closed(void) { NEED(shutdown(a.server, SHUT_WR)); }

/* Closed while wake-ups come. */
static void closed_under(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, sends_one, NULL);
    usleep(1900);
    close(a.server);
    pthread_join(thread, NULL);
}

static void replaced(void)
{
    int null = NEED(open("/dev/null", O_RDWR));
    NEED(dup2(null, a.server));
    close(null);
}

static void polled(void)
{
    struct pollfd one = {.fd = a.server, .events = POLLIN};
    pthread_t thread;
    pthread_create(&thread, NULL, sends_one, NULL);
    poll(&one, 1, 5000);
    char byte;
    recv(a.server, &byte, 1, MSG_DONTWAIT);
    pthread_join(thread, NULL);
}

static void moved(void)
{
    int other = NEED(epoll_create1(0));
    struct epoll_event told;
    NEED(add(other, a.server, EPOLLIN, 9));
    NEED(epoll_ctl(set, EPOLL_CTL_DEL, a.server, NULL));
    NEED(send(a.client, "x", 1, 0));
    epoll_wait(other, &told, 1, 5000);
    char byte;
    recv(a.server, &byte, 1, 0);
    close(other);
}

static void handed_over(void)
{
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give_fd(channel[0], a.server);
    int same = take_fd(channel[1]);
    char byte;
    NEED(send(a.client, "x", 1, 0));
    NEED(recv(same, &byte, 1, 0));
    close(same);
    close(channel[0]);
    close(channel[1]);
}

/* Another process takes what comes. */
static void read_by_child(void)
{
    int ready[2];
    NEED(pipe(ready));
    pid_t child = NEED(fork());
    if (child == 0) {
        char byte;
        NEED(fcntl(a.server, F_SETFL, O_NONBLOCK));
        for (int look = 0; look < 5000; look++) {
            if (look == 1 && write(ready[1], "r", 1) != 1)
                _exit(1);
            if (recv(a.server, &byte, 1, 0) == 1)
                _exit(0);
            usleep(look < 2 ? 0 : 100);
        }
        _exit(0);
    }
    char byte;
    NEED(read(ready[0], &byte, 1));
    usleep(2000);
    NEED(send(a.client, "x", 1, 0));
    usleep(20000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

static const struct {
    const char *name;
    void (*run)(void);
    bool sends;
} actions[] = {
    {"taken out", taken_out, true},          {"masked", masked, true},
    {"changed", changed, true},              {"received", received, false},
    {"received in pieces", received_in_pieces, false}, {"received blocking", received_blocking, false},
    {"closed", closed, false},               {"closed under it", closed_under, false},
    {"shut", shut, false},                   {"half closed", half_closed, true},
    {"replaced", replaced, false},           {"polled", polled, false},
    {"moved", moved, false},                 {"handed over", handed_over, false},
    {"read by a child", read_by_child, false},
};

static void beside(int action)
{
    pthread_t thread;
    a = promoted();
    b = promoted();
    set = NEED(epoll_create1(0));
    outer = NEED(epoll_create1(0));
    over = kept_out = false;
    waiter = 0;
    NEED(add(set, a.server, events(), 1));
    NEED(add(set, b.server, events(), 2));
    if (kind == NESTED)
        NEED(add(outer, set, EPOLLIN, 3));
    pthread_create(&thread, NULL, waits, NULL);
    bool before = more_answered(b.client, 30) & more_answered(a.client, 30) & more_answered(b.client, 2);
    until_asleep(&waiter);
    kept_out = true;
    actions[action].run();
    if (actions[action].sends)
        NEED(send(a.client, "x", 1, MSG_NOSIGNAL));
    pause_ms(5);
    bool after = more_answered(b.client, 4);
    say("%s, %s: %d before, %d after", actions[action].name, kinds[kind], before, after);
    if (!after)
        _exit(5);
    over = true;
    NEED(send(b.client, "x", 1, 0));
    pthread_join(thread, NULL);
    close(a.client);
    close(a.server);
    close(b.client);
    close(b.server);
    close(set);
    close(outer);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (unsigned action = 0; action < sizeof actions / sizeof *actions; action++)
        for (kind = 0; kind < KINDS; kind++)
            beside(action);
    return 0;
}
