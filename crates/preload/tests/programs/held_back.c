/* MSG_MORE and TCP_CORK: what the sender asks the kernel to hold back is not readable, until it says so or some 200 ms later.
 * also: auto; spins: 0 */
#include "transcript.h"

enum { PAIRS = 100 };
static int on = 1, off = 0;

/* Whether it is readable at once, and without another call of the sender. */
static void held(const char *what, int fd, bool comes)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    say("%s: at once %d", what, NEED(poll(&one, 1, 0)));
    if (comes)
        say("  later %d", NEED(poll(&one, 1, 5000)));
}

static void taken(int fd)
{
    char bytes[64];
    wait_for(fd, 1);
    ssize_t count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    show_bytes("  taken", bytes, count);
}

enum { SEND, SENDTO, SENDMSG, SENDMMSG, SPLICE, CALLS };
static const char *const calls[] = {"send", "sendto", "sendmsg", "sendmmsg", "splice"};

static ssize_t more_by(int call, int fd, const char *text)
{
    struct iovec piece = {(char *)text, strlen(text)};
    struct mmsghdr head = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
    switch (call) {
    case SEND: return send(fd, text, strlen(text), MSG_MORE);
    case SENDTO: return sendto(fd, text, strlen(text), MSG_MORE, NULL, 0);
    case SENDMSG: return sendmsg(fd, &head.msg_hdr, MSG_MORE);
    case SENDMMSG: return sendmmsg(fd, &head, 1, MSG_MORE);
    }
    int way[2];
    NEED(pipe(way));
    NEED(write(way[1], text, strlen(text)));
    ssize_t moved = splice(way[0], NULL, fd, NULL, strlen(text), SPLICE_F_MORE);
    close(way[0]);
    close(way[1]);
    return moved;
}

static void more(struct pair pair)
{
    for (int call = 0; call < CALLS; call++) {
        NEED(more_by(call, pair.client, "head "));
        held(calls[call], pair.server, false);
        NEED(send(pair.client, "body", 4, 0));
        taken(pair.server);
        NEED(more_by(call, pair.client, "alone"));
        held(calls[call], pair.server, true);
        taken(pair.server);
        used(pair);
    }
    /* Behind bytes that nobody has read. */
    send_all(pair.client, "unread ", 7);
    wait_for(pair.server, 7);
    NEED(send(pair.client, "head ", 5, MSG_MORE));
    taken(pair.server);
    held("behind unread bytes", pair.server, false);
    NEED(send(pair.client, "next ", 5, MSG_MORE));
    held("and more", pair.server, false);
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    taken(pair.server);
    used(pair);
}

static void corked(struct pair pair)
{
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    NEED(write(pair.client, "head ", 5));
    held("corked", pair.server, false);
    NEED(write(pair.client, "body", 4));
    held("corked", pair.server, false);
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    taken(pair.server);
    used(pair);
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    NEED(write(pair.client, "alone", 5));
    held("corked", pair.server, true);
    taken(pair.server);
    /* The other direction is not. */
    send_all(pair.server, "answer", 6);
    held("not corked", pair.client, false);
    taken(pair.client);
    NEED(write(pair.client, "last", 4));
    held("corked", pair.server, false);
    SHOW(shutdown(pair.client, SHUT_WR));
    taken(pair.server);
}

/* Much is sent, but for its end. */
static void streamed(struct pair pair)
{
    static unsigned char bytes[300000], got[300000];
    fill(bytes, 0, sizeof bytes);
    nonblocking(pair.client);
    size_t sent = 0, received = 0;
    while (received < sizeof bytes) {
        ssize_t count = sent < sizeof bytes
                            ? send(pair.client, bytes + sent, sizeof bytes - sent < 7000 ? sizeof bytes - sent : 7000, MSG_MORE)
                            : 0;
        sent += count > 0 ? count : 0;
        count = recv(pair.server, got + received, sizeof got - received, MSG_DONTWAIT);
        received += count > 0 ? count : 0;
    }
    say("the same: %d", same(got, 0, sizeof got));
}

/* Reads pairs of a head and a body, as its set reports them. */
static void *answers(void *argument)
{
    int fd = *(int *)argument, set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    char bytes[9];
    for (int round = 0; round < PAIRS; round++) {
        for (size_t got = 0; got < sizeof bytes;) {
            NEED(epoll_wait(set, &event, 1, -1));
            ssize_t count = recv(fd, bytes + got, sizeof bytes - got, MSG_DONTWAIT);
            if (count == 0 || (count < 0 && errno != EAGAIN))
                fail("recv");
            got += count > 0 ? count : 0;
        }
        send_all(fd, "got", 3);
    }
    close(set);
    return NULL;
}

/* A body right behind its head has the kernel send both at once. */
static void paired(struct pair pair)
{
    pthread_t thread;
    char bytes[3];
    struct timespec from, to;
    NEED(clock_gettime(CLOCK_MONOTONIC, &from));
    pthread_create(&thread, NULL, answers, &pair.server);
    for (int round = 0; round < PAIRS; round++) {
        NEED(send(pair.client, "head ", 5, MSG_MORE));
        if (round % 2)
            usleep(2000);
        NEED(send(pair.client, "body", 4, 0));
        take_all(pair.client, bytes, sizeof bytes);
    }
    pthread_join(thread, NULL);
    NEED(clock_gettime(CLOCK_MONOTONIC, &to));
    long took = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
    say("soon: %d", took < PAIRS * 10);
    used(pair);
}

int main(void)
{
    struct sockaddr_in at;
    say("early");
    struct pair pair = connected();
    more(pair);
    corked(pair);
    say("promoted");
    pair = promoted();
    more(pair);
    corked(promoted());
    streamed(promoted());
    paired(promoted());
    /* Where it was asked for before. */
    say("before");
    int listener = listening(&at);
    NEED(setsockopt(listener, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    pair.client = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
    pair.server = NEED(accept(listener, NULL, NULL));
    NEED(send(pair.server, "head", 4, 0));
    held("of the listener", pair.client, true);
    taken(pair.client);
    return 0;
}
