/* System calls by instructions of the program's own, which no library sees: sockets that were made so are promoted if
 * their bytes go by the C library, and edge-triggered sets hear of what comes behind bytes that were left. */
#include "own_call.h"
#include "transcript.h"

static struct pair made_unseen(void)
{
    struct sockaddr_in at;
    int listener = listening(&at), on = 1;
    struct pair pair;
    pair.client = own_call(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0, 0, 0);
    say("connect = %ld", own_call(SYS_connect, pair.client, (long)&at, sizeof at, 0, 0));
    pair.server = own_call(SYS_accept4, listener, 0, 0, SOCK_CLOEXEC, 0);
    close(listener);
    NEED(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    return pair;
}

static void made(void)
{
    char bytes[16] = {0};
    struct pair pair = made_unseen();
    say("# made unseen");
    warm(pair);
    SHOW(send(pair.client, "over the ring", 13, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    show_bytes("recv", bytes, 13);
    SHOW(close(pair.client));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    close(pair.server);

    /* It stays on TCP. */
    pair = made_unseen();
    say("# made unseen, and used so before");
    say("sent: %ld", own_call(SYS_sendto, pair.client, (long)"abc", 3, 0, 0));
    say("received: %ld", own_call(SYS_recvfrom, pair.server, (long)bytes, sizeof bytes, 0, 0));
    for (int round = 0; round < 20; round++) {
        send_all(pair.client, "seen", 4);
        take_all(pair.server, bytes, 4);
        if (own_call(SYS_sendto, pair.server, (long)"own", 3, 0, 0) != 3)
            fail("sendto");
        take_all(pair.client, bytes + 8, 3);
    }
    show_bytes("received", bytes, 11);
}

static int own_set(void)
{
    return own_call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0);
}

static void change(int set, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    long status = own_call(SYS_epoll_ctl, set, operation, fd, (long)&event, 0);
    say("change = %ld", status);
}

static void show_wait(const char *what, int set, int milliseconds)
{
    struct epoll_event event;
    long count;
    while ((count = own_call(SYS_epoll_pwait, set, (long)&event, 1, milliseconds, 0)) == -EINTR)
        ;
    say("%s: %ld", what, count);
}

static void leaves_some(bool blocks, int left)
{
    struct pair pair = promoted();
    char bytes[64];
    int set = own_set();
    say("# %s, %d left", blocks ? "blocking" : "not blocking", left);
    if (!blocks)
        NEED(fcntl(pair.server, F_SETFL, O_NONBLOCK));
    change(set, EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET);
    show_wait("nothing", set, 20);
    SHOW(send(pair.client, "abcde", 5, 0));
    show_wait("arrival", set, 5000);
    for (int round = 0; round < 10; round++) {
        SHOW(recv(pair.server, bytes, 5 - left, 0));
        show_wait("a part taken is none", set, 20);
        if (round % 2) {
            /* To look is not to take. */
            SHOW(recv(pair.server, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT));
            show_wait("nor is a look", set, 20);
        }
        SHOW(send(pair.client, "fghij", 5 - left, 0));
        show_wait("arrival beside the rest", set, 5000);
    }
    for (int round = 0; round < 5; round++) {
        SHOW(send(pair.client, "z", 1, 0));
        show_wait("arrival beside what was not looked at", set, 5000);
    }
    show_wait("no more", set, 20);
    change(set, EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLET);
    show_wait("told anew", set, 5000);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
    show_wait("empty", set, 20);
    SHOW(send(pair.client, "k", 1, 0));
    show_wait("arrival", set, 5000);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    show_wait("the end", set, 5000);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
}

enum { ROUNDS = 20000, RECORD = 7 };

static void *sends(void *at)
{
    struct pair *pair = at;
    char bytes[RECORD];
    memset(bytes, 'r', sizeof bytes);
    for (int round = 0; round < ROUNDS; round++)
        send_all(pair->client, bytes, sizeof bytes);
    return NULL;
}

/* One that reads while more comes: it looks at what is here, and waits for an edge where that is no whole record. */
static void outrun(void)
{
    struct pair pair = promoted();
    pthread_t sender;
    int set = own_set();
    change(set, EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET);
    NEED(-pthread_create(&sender, NULL, sends, &pair));
    char bytes[3 * RECORD];
    long records = 0, lost = 0;
    while (records < ROUNDS && lost == 0) {
        long here = recv(pair.server, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
        if (here >= RECORD) {
            here -= here % RECORD;
            take_all(pair.server, bytes, here);
            records += here / RECORD;
            continue;
        }
        struct epoll_event event;
        lost = own_call(SYS_epoll_pwait, set, (long)&event, 1, 10000, 0) == 0;
    }
    pthread_join(sender, NULL);
    say("records: %ld, lost edges: %ld", records, lost);
}

/* A set of the C library's that the program waits for by itself. */
static void half_seen(uint32_t events)
{
    say("# half seen %x", events);
    for (int round = 0; round < 5; round++) {
        struct pair pair = connected();
        char bytes[64];
        int set = NEED(epoll_create1(0));
        NEED(add(set, pair.server, events, 1));
        for (int message = 0; message < 20; message++) {
            send_all(pair.client, "abc", 3);
            show_wait("arrival", set, 5000);
            if (message % 2)
                NEED(modify(set, pair.server, events | EPOLLOUT, 1));
            SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
            NEED(modify(set, pair.server, events, 1));
            send_all(pair.server, "de", 2);
            take_all(pair.client, bytes, 2);
        }
        close(set);
        close(pair.client);
        close(pair.server);
    }
}

enum { BEFORE = 50, AFTER = 20 };

/* Waits by calls of the C library, and by its own from then on. */
static void *serves(void *at)
{
    int fd = *(int *)at, set = own_set();
    echo_all(fd, BEFORE, 1);
    change(set, EPOLL_CTL_ADD, fd, EPOLLIN);
    for (int round = 0; round < AFTER; round++) {
        show_wait("asked", set, 5000);
        echo_all(fd, 1, 1);
    }
    return NULL;
}

static void waited_otherwise_before(void)
{
    struct pair pair = promoted();
    pthread_t server;
    NEED(-pthread_create(&server, NULL, serves, &pair.server));
    bool right = is_echoed(pair.client, BEFORE + AFTER, 1);
    pthread_join(server, NULL);
    say("echoed: %d", right);
}

/* O_NONBLOCK is set unseen, and a wait that nobody sees follows on EAGAIN. */
static void *asked_unseen(void *at)
{
    int fd = *(int *)at, set = own_set();
    char byte;
    struct epoll_event event;
    echo_all(fd, BEFORE, 1);
    own_call(SYS_fcntl, fd, F_SETFL, O_NONBLOCK, 0, 0);
    change(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
    for (int got = 0; got < AFTER;) {
        long count = recv(fd, &byte, 1, 0);
        if (count == 1)
            got++;
        else
            own_call(SYS_epoll_pwait, set, (long)&event, 1, 5000, 0);
    }
    return NULL;
}

static void told_otherwise(void)
{
    struct pair pair = promoted();
    pthread_t server;
    NEED(-pthread_create(&server, NULL, asked_unseen, &pair.server));
    bool right = is_echoed(pair.client, BEFORE, 1);
    for (int round = 0; round < AFTER; round++) {
        usleep(5000);
        send_all(pair.client, "a", 1);
    }
    long sent = milliseconds();
    pthread_join(server, NULL);
    say("echoed: %d, read at once: %d", right, milliseconds() - sent < 4000);
}

int main(void)
{
    waited_otherwise_before();
    told_otherwise();
    half_seen(EPOLLIN);
    half_seen(EPOLLIN | EPOLLONESHOT);
    made();
    leaves_some(true, 2);
    leaves_some(false, 1);
    outrun();
    return 0;
}
