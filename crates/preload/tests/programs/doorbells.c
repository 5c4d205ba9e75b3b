/* Ends that sleep are woken whatever the program does to descriptors that it does not know of, and however it waits. */
#include "transcript.h"

#include <sys/resource.h>

enum { ROUNDS = 40, LOWEST = 1024, HIGHEST = 1100 };

/* What a wake-up that is lost costs. */
enum { LONG_MS = 60000 };

enum way { BLOCKING, LIMITED, POLLED, SELECTED, LEVEL, EDGE, WAYS };
static const char *const names[] = {"blocking", "limited", "polled", "selected", "level", "edge"};

/* Sleeps until something can be read. */
static void sleep_for(int fd, int set, enum way way)
{
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set to_read;
    FD_ZERO(&to_read);
    FD_SET(fd, &to_read);
    int ready = 1;
    if (way == POLLED)
        ready = poll(&one, 1, LONG_MS);
    else if (way == SELECTED)
        ready = select(fd + 1, &to_read, NULL, NULL, &(struct timeval){LONG_MS / 1000, 0});
    else if (way == LEVEL || way == EDGE)
        ready = epoll_wait(set, &event, 1, LONG_MS);
    if (ready != 1)
        fail("the wait");
}

struct side {
    int fd, set;
    enum way way;
};

/* Answers each byte a while later, when the other end sleeps. */
static void *answers(void *at)
{
    struct side *side = at;
    char byte;
    for (int round = 0; round < ROUNDS; round++) {
        take_all(side->fd, &byte, 1);
        usleep(500);
        send_all(side->fd, &byte, 1);
    }
    return NULL;
}

static void exchange(struct pair pair, enum way way)
{
    int set = -1;
    if (way == LIMITED)
        NEED(setsockopt(pair.client, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){LONG_MS / 1000, 0}, sizeof(struct timeval)));
    if (way == LEVEL || way == EDGE) {
        struct epoll_event event = {.events = EPOLLIN | (way == EDGE ? EPOLLET : 0), .data.fd = pair.client};
        set = NEED(epoll_create1(EPOLL_CLOEXEC));
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    }
    struct side side = {pair.server, -1, BLOCKING};
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, answers, &side));
    long began = milliseconds(), wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char sent = (char)round, got = 0;
        send_all(pair.client, &sent, 1);
        sleep_for(pair.client, set, way);
        take_all(pair.client, &got, 1);
        wrong += got != sent;
    }
    pthread_join(thread, NULL);
    say("%s: wrong %ld, in time %d", names[way], wrong, milliseconds() - began < LONG_MS);
    if (set >= 0)
        close(set);
}

static void all_ways(struct pair pair)
{
    for (enum way way = BLOCKING; way < WAYS; way++)
        exchange(pair, way);
}

static int open_ones(void)
{
    int open = 0;
    for (int fd = LOWEST; fd < HIGHEST; fd++)
        open += fcntl(fd, F_GETFD) >= 0;
    return open;
}

static void close_each(void)
{
    int closed = 0;
    for (int fd = LOWEST; fd < HIGHEST; fd++)
        closed += close(fd) == 0;
    say("closed: %d", closed);
}

static void limit_is_kept(struct rlimit before)
{
    struct rlimit now;
    NEED(getrlimit(RLIMIT_NOFILE, &now));
    say("limits: %d", now.rlim_cur == before.rlim_cur && now.rlim_max == before.rlim_max);
}

int main(void)
{
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    /* Room above the program's own, where its hard limit has some. */
    limit.rlim_cur = limit.rlim_cur > LOWEST ? LOWEST : limit.rlim_cur;
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    struct pair pair = promoted();
    all_ways(pair);
    limit_is_kept(limit);

    say("# closed one by one");
    int open = open_ones();
    close_each();
    all_ways(pair);
    say("# by ranges");
    SHOW(close_range(LOWEST, ~0U, 0));
    SHOW(close_range(900, 2000, CLOSE_RANGE_CLOEXEC));
    closefrom(LOWEST - 100);
    say("none is closed: %d", open_ones() == open);
    all_ways(pair);

    say("# numbers that the program takes");
    if (limit.rlim_max > HIGHEST) {
        limit.rlim_cur = limit.rlim_max;
        NEED(setrlimit(RLIMIT_NOFILE, &limit));
        int ends[2];
        NEED(pipe(ends));
        for (int fd = LOWEST; fd < LOWEST + 8; fd++) {
            NEED(dup2(ends[0], fd));
            exchange(pair, fd % WAYS);
        }
        send_all(pair.client, "x", 1);
        NEED(write(ends[1], "abcdefgh", 8));
        char byte;
        for (int fd = LOWEST; fd < LOWEST + 8; fd++) {
            NEED(read(fd, &byte, 1));
            say("%c", byte);
            SHOW(close(fd));
        }
        take_all(pair.server, &byte, 1);
    }
    all_ways(pair);

    say("# a child holds it for a while, and closes what it does not know");
    int go[2];
    NEED(pipe(go));
    pid_t child = NEED(fork());
    if (child == 0) {
        char byte;
        close(go[1]);
        closefrom(go[0] + 1);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    close(go[0]);
    all_ways(pair);
    close(go[1]);
    int status;
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    all_ways(pair);
    SHOW(close(pair.client));
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    SHOW(close(pair.server));
    return 0;
}
