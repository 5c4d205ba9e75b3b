/* connect(2) with AF_UNSPEC dissolves a connection, and the socket connects again: in every state of the connection, by
 * either end, and what each of its holders gets then.
 * also: auto; spins: 0 */
#include "transcript.h"

#include <sys/mman.h>

static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

static void shows(const char *who, const char *what, long result)
{
    say("  %s: %s = %ld %s", who, what, result, result < 0 ? strerrorname_np(errno) : "");
}

/* What is left to read, and then whatever comes. */
static void drained(const char *who, int fd)
{
    char bytes[64];
    for (int round = 0; round < 3; round++) {
        ssize_t count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        shows(who, "recv", count);
        if (count > 0)
            show_bytes("    of them", bytes, count);
    }
}

static void error_of(const char *who, int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    NEED(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    say("  %s: SO_ERROR %s", who, error ? strerrorname_np(error) : "none");
}

/* The order in which the program asks. */
enum { READ_FIRST, SEND_FIRST, ERROR_FIRST, POLL_FIRST, ORDERS };

static void asked(const char *who, int fd, int order)
{
    if (order == SEND_FIRST)
        shows(who, "send", send(fd, "lost", 4, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (order == ERROR_FIRST)
        error_of(who, fd);
    if (order == POLL_FIRST)
        show_poll(who, fd, POLLIN | POLLOUT | POLLRDHUP, 0);
    drained(who, fd);
    shows(who, "send", send(fd, "lost", 4, MSG_NOSIGNAL | MSG_DONTWAIT));
    error_of(who, fd);
}

/* The socket has another connection, which works as the first one did. */
static struct pair again(int fd)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    shows("own", "connect again", connect(fd, (struct sockaddr *)&at, sizeof at));
    struct pair pair = {fd, NEED(accept(listener, NULL, NULL))};
    close(listener);
    used(pair);
    bool right = true;
    for (int round = 0; round < 40; round++) {
        char sent[16], got[16];
        memset(sent, round, sizeof sent);
        send_all(pair.client, sent, sizeof sent);
        take_all(pair.server, got, sizeof got);
        right &= !memcmp(sent, got, sizeof got);
        send_all(pair.server, got, sizeof got);
        take_all(pair.client, got, sizeof got);
        right &= !memcmp(sent, got, sizeof got);
    }
    say("  the same bytes: %d", right);
    send_all(pair.server, "left", 4);
    return pair;
}

enum { NEW, UNANSWERED, FEW, LONG, UNREAD_THERE, UNREAD_HERE, UNREAD_BOTH, HALF_CLOSED_THERE, HALF_CLOSED_HERE, CLOSED_THERE,
       LEFT_THERE, LEFT_HERE, DUPLICATED, WOKEN, STATES };
static const char *const states[] = {"new", "unanswered", "few messages", "promoted", "unread there", "unread here",
                                     "unread both", "half closed there", "half closed here", "closed there", "left there",
                                     "left here", "duplicated", "woken for each message"};

enum { WAKE_UPS = 2000 };

/* Somebody else may have this end from here on, who closes it. */
static void leaves(int fd)
{
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give_fd(channel[0], fd);
    close(take_fd(channel[1]));
    close(channel[0]);
    close(channel[1]);
}

static void *echo(void *fd)
{
    echo_all((int)(intptr_t)fd, WAKE_UPS, 16);
    return NULL;
}

/* A connection that was promoted, if any are; by default that takes some messages. */
static struct pair in_memory(void)
{
    const char *mode = getenv("MEGAPIPE_PROMOTE");
    struct pair pair = promoted();
    for (int round = 0; mode && !strcmp(mode, "auto") && round < 1000 && ping(pair) == 2 * PING; round++)
        usleep(20);
    return pair;
}

static struct pair brought_to(int state, bool by_server)
{
    if (state == NEW || state == FEW) {
        struct pair pair = connected();
        for (int round = 0; state == FEW && round < 20; round++)
            ping(pair);
        return pair;
    }
    if (state == UNANSWERED) {
        struct sockaddr_in at;
        struct pair pair = {NEED(socket(AF_INET, SOCK_STREAM, 0)), listening(&at)};
        NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
        NEED(send(pair.client, "early", 5, 0));
        return pair;
    }
    struct pair pair = in_memory();
    int own = by_server ? pair.server : pair.client, other = by_server ? pair.client : pair.server;
    if (state == WOKEN) {
        pthread_t thread;
        NEED(pthread_create(&thread, NULL, echo, (void *)(intptr_t)pair.server));
        if (!is_echoed(pair.client, WAKE_UPS, 16))
            fail("other bytes");
        pthread_join(thread, NULL);
    }
    if (state == UNREAD_THERE || state == UNREAD_BOTH) {
        send_all(own, "to be read", 10);
        wait_for(other, 10);
    }
    if (state == UNREAD_HERE || state == UNREAD_BOTH) {
        send_all(other, "never", 5);
        wait_for(own, 5);
    }
    if (state == HALF_CLOSED_THERE)
        NEED(shutdown(other, SHUT_WR));
    if (state == HALF_CLOSED_HERE)
        NEED(shutdown(own, SHUT_WR));
    if (state == LEFT_THERE)
        leaves(other);
    if (state == LEFT_HERE)
        leaves(own);
    return pair;
}

static void walk(int state, bool by_server, int order)
{
    if (state == UNANSWERED && by_server)
        return;
    say("%s, by the %s, order %d", states[state], by_server ? "server" : "client", order);
    struct pair pair = brought_to(state, by_server);
    int own = by_server ? pair.server : pair.client, other = by_server ? pair.client : pair.server;
    int copy = state == DUPLICATED ? NEED(dup(own)) : -1;
    if (state == CLOSED_THERE)
        NEED(close(other));
    shows("own", "connect to nobody", connect(own, &nobody, sizeof nobody));
    if (state == UNANSWERED) {
        other = NEED(accept(pair.server, NULL, NULL));
        close(pair.server);
    }
    if (order != ORDERS - 1)
        asked("own", own, order);
    if (copy >= 0)
        asked("copy", copy, READ_FIRST);
    if (state != CLOSED_THERE) {
        asked("other", other, order);
        NEED(close(other));
    }
    struct pair next = again(copy >= 0 ? copy : own);
    shows("own", "connect to nobody", connect(own, &nobody, sizeof nobody));
    asked("own", own, READ_FIRST);
    asked("other", next.server, READ_FIRST);
    NEED(close(next.server));
    next = again(own);
    close(next.server);
    close(own);
    if (copy >= 0)
        close(copy);
}

/* Addresses that the kernel refuses, or that name somebody, change nothing. */
static void refused(void)
{
    struct pair pair = in_memory();
    struct sockaddr_in somebody = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9)};
    char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    send_all(pair.server, "kept", 4);
    SHOW(connect(pair.client, &nobody, 0));
    SHOW(connect(pair.client, &nobody, 1));
    SHOW(connect(pair.client, &nobody, 129));
    SHOW(connect(pair.client, &nobody, -1));
    SHOW(connect(pair.client, NULL, sizeof nobody));
    SHOW(connect(pair.client, (struct sockaddr *)page, sizeof nobody));
    SHOW(connect(pair.client, (struct sockaddr *)&somebody, sizeof somebody));
    SHOW(connect(-1, &nobody, sizeof nobody));
    SHOW(connect(pair.client, (struct sockaddr *)&somebody, 2));
    drained("client", pair.client);
    used(pair);
    if (eager())
        warm(pair);
    /* The last ones that it takes. */
    struct pair other = in_memory();
    SHOW(connect(pair.client, &nobody, 2));
    SHOW(connect(other.server, &nobody, 128));
    drained("server", pair.server);
    drained("client", other.client);
}

static void in_sets(unsigned edge)
{
    say("in a set, %s", edge ? "edge-triggered" : "level-triggered");
    struct pair pair = in_memory();
    int set = NEED(epoll_create1(0)), theirs = NEED(epoll_create1(0));
    NEED(add(set, pair.client, EPOLLIN | EPOLLOUT | EPOLLRDHUP | edge, 1));
    NEED(add(theirs, pair.server, EPOLLIN | EPOLLRDHUP | edge, 2));
    show_epoll("before", set, 0);
    show_epoll("before", theirs, 0);
    shows("own", "connect to nobody", connect(pair.client, &nobody, sizeof nobody));
    show_epoll("own", set, 0);
    show_epoll("other", theirs, 0);
    show_epoll("own", set, 0);
    show_epoll("other", theirs, 0);
    drained("own", pair.client);
    drained("other", pair.server);
    show_epoll("own", set, 0);
    struct pair next = again(pair.client);
    show_epoll("own", set, 1000);
    drained("own", next.client);
    send_all(next.server, "more", 4);
    show_epoll("own", set, 1000);
}

struct waits {
    int fd, call;
    volatile pid_t thread;
    ssize_t result;
    int error;
};

static void *wait_in_call(void *argument)
{
    struct waits *waits = argument;
    char bytes[16];
    struct pollfd one = {.fd = waits->fd, .events = POLLIN | POLLRDHUP};
    waits->thread = gettid();
    waits->result = waits->call == 0 ? recv(waits->fd, bytes, sizeof bytes, 0)
                    : waits->call == 1 ? recv(waits->fd, bytes, sizeof bytes, MSG_WAITALL)
                                       : poll(&one, 1, -1);
    waits->error = errno;
    if (waits->call == 2)
        waits->result = waits->result * 1000 + one.revents;
    return NULL;
}

/* Another thread waits, at this end or at the other. */
static void waited_for(bool at_other, int call)
{
    say("waited for %s, call %d", at_other ? "there" : "here", call);
    struct pair pair = in_memory();
    struct waits waits = {.fd = at_other ? pair.server : pair.client, .call = call};
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, wait_in_call, &waits));
    until_asleep(&waits.thread);
    shows("own", "connect to nobody", connect(pair.client, &nobody, sizeof nobody));
    pthread_join(thread, NULL);
    errno = waits.error;
    shows("thread", "its call", waits.result);
    drained("own", pair.client);
    drained("other", pair.server);
    close(again(pair.client).server);
}

static volatile bool over;

/* Calls until it is over; whether one failed as none does on TCP. */
static void *calls(void *argument)
{
    struct waits *waits = argument;
    char bytes[16];
    while (!over) {
        ssize_t count = waits->call == 0   ? recv(waits->fd, bytes, sizeof bytes, MSG_DONTWAIT)
                        : waits->call == 1 ? send(waits->fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT)
                                           : recv(waits->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
        if (count < 0 && errno != EAGAIN && errno != EPIPE && errno != ECONNRESET && errno != ENOTCONN)
            waits->error = errno;
    }
    return NULL;
}

/* Threads are in calls on it when it is disconnected, and connected again. */
static void among_calls(void)
{
    int error = 0;
    for (int round = 0; round < 30; round++) {
        struct pair pair = in_memory();
        struct waits waits[] = {{.fd = pair.client, .call = 0}, {.fd = pair.client, .call = 1}, {.fd = pair.client, .call = 2},
                                {.fd = pair.server, .call = 0}, {.fd = pair.server, .call = 1}};
        enum { THREADS = sizeof waits / sizeof waits[0] };
        pthread_t threads[THREADS];
        over = false;
        for (int thread = 0; thread < THREADS; thread++)
            NEED(pthread_create(&threads[thread], NULL, calls, &waits[thread]));
        pause_ms(1);
        struct sockaddr_in at;
        int listener = listening(&at);
        NEED(connect(pair.client, &nobody, sizeof nobody));
        NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
        pause_ms(1);
        over = true;
        for (int thread = 0; thread < THREADS; thread++) {
            pthread_join(threads[thread], NULL);
            error = waits[thread].error ? waits[thread].error : error;
        }
        close(NEED(accept(listener, NULL, NULL)));
        close(listener);
        close(pair.client);
        close(pair.server);
    }
    say("among calls: %s", error ? strerrorname_np(error) : "no other error");
}

/* Another process has the socket, too. */
static void forked(bool by_child)
{
    say("forked, by the %s", by_child ? "child" : "parent");
    struct pair pair = in_memory();
    int go[2];
    NEED(pipe(go));
    pid_t child = NEED(fork());
    char byte = 0;
    if (child == 0) {
        char bytes[8];
        close(pair.server);
        if (by_child) {
            take_all(pair.client, bytes, 4);
            send_all(pair.client, "child", 5);
            shows("child", "connect to nobody", connect(pair.client, &nobody, sizeof nobody));
        } else if (read(go[0], &byte, 1) != 1)
            fail("read");
        drained("child", pair.client);
        shows("child", "send", send(pair.client, "lost", 4, MSG_NOSIGNAL | MSG_DONTWAIT));
        _exit(0);
    }
    if (by_child) {
        send_all(pair.server, "four", 4);
        status_of(child);
    } else {
        shows("parent", "connect to nobody", connect(pair.client, &nobody, sizeof nobody));
        NEED(write(go[1], "x", 1));
        status_of(child);
    }
    drained("parent", pair.client);
    drained("other", pair.server);
    shows("other", "send", send(pair.server, "lost", 4, MSG_NOSIGNAL | MSG_DONTWAIT));
    close(again(pair.client).server);
}

/* What listened connects, and what connected listens. */
static void listens(void)
{
    say("listens");
    struct sockaddr_in at;
    int listener = listening(&at);
    shows("listener", "connect to nobody", connect(listener, &nobody, sizeof nobody));
    struct pair pair = again(listener);
    shows("own", "connect to nobody", connect(pair.client, &nobody, sizeof nobody));
    socklen_t length = sizeof at;
    NEED(listen(pair.client, 8));
    NEED(getsockname(pair.client, (struct sockaddr *)&at, &length));
    int client = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(client, (struct sockaddr *)&at, sizeof at));
    struct pair last = {client, NEED(accept(pair.client, NULL, NULL))};
    used(last);
    if (eager())
        warm(last);
    used(last);
    int unused = NEED(socket(AF_INET, SOCK_STREAM, 0));
    shows("unused", "connect to nobody", connect(unused, &nobody, sizeof nobody));
    close(again(unused).server);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (int state = 0; state < STATES; state++)
        for (int by_server = 0; by_server < 2; by_server++)
            for (int order = 0; order < ORDERS; order++)
                walk(state, by_server, order);
    refused();
    in_sets(0);
    in_sets(EPOLLET);
    for (int call = 0; call < 3; call++) {
        waited_for(false, call);
        waited_for(true, call);
    }
    among_calls();
    forked(false);
    forked(true);
    listens();
    return 0;
}
