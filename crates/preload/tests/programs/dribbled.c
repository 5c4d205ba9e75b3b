/* SO_RCVTIMEO and SO_SNDTIMEO bound a call, not each wait of it: bytes that come, or are read, one by one
 * do not prolong it. */
#include "transcript.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LIMIT = 200, LONG = 20000, TIMES = 600 };

static char bytes[32 << 20];
static struct pair pair;
static atomic_int stop;

static void *dribble(void *nothing)
{
    for (int i = 0; i < TIMES && !stop; i++) {
        usleep(50000);
        send(pair.client, "x", 1, MSG_NOSIGNAL);
    }
    return nothing;
}

static void *sip(void *nothing)
{
    static char some[4096];
    for (int i = 0; i < TIMES && !stop; i++) {
        usleep(50000);
        recv(pair.server, some, sizeof some, MSG_DONTWAIT);
    }
    return nothing;
}

/* There is a part, however late the other thread is. */
static void send_first(void) { NEED(send(pair.client, "x", 1, MSG_NOSIGNAL)); }

static long by_recv(void)
{
    send_first();
    return recv(pair.server, bytes, 100, MSG_WAITALL);
}
static long by_recvfrom(void)
{
    send_first();
    return recvfrom(pair.server, bytes, 100, MSG_WAITALL, NULL, NULL);
}
static long by_truncating(void)
{
    send_first();
    return recv(pair.server, bytes, 100, MSG_WAITALL | MSG_TRUNC);
}
static long by_peeking(void)
{
    send_first();
    return recv(pair.server, bytes, 100, MSG_WAITALL | MSG_PEEK);
}

static long by_recvmsg(void)
{
    struct iovec two[] = {{bytes, 50}, {bytes + 50, 50}};
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
    send_first();
    return recvmsg(pair.server, &message, MSG_WAITALL);
}

static long by_mark(long (*call)(void))
{
    int mark = 100, one = 1;
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    send_first();
    long count = call();
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
    return count;
}

static long plain_read(void) { return read(pair.server, bytes, 200); }
static long by_marked_read(void) { return by_mark(plain_read); }

static long plain_readv(void)
{
    struct iovec two[] = {{bytes, 50}, {bytes + 50, 150}};
    return readv(pair.server, two, 2);
}
static long by_marked_readv(void) { return by_mark(plain_readv); }

static long by_send(void) { return send(pair.client, bytes, sizeof bytes, 0); }
static long by_write(void) { return write(pair.client, bytes, sizeof bytes); }

static long by_writev(void)
{
    static struct iovec many[1024];
    for (int i = 0; i < 1024; i++)
        many[i] = (struct iovec){bytes + i * (sizeof bytes / 1024), sizeof bytes / 1024};
    return writev(pair.client, many, 1024);
}

static void in_time(const char *name, long (*call)(void), void *(*meanwhile)(void *), long all)
{
    pthread_t thread;
    stop = 0;
    NEED(pthread_create(&thread, NULL, meanwhile, NULL));
    long began = milliseconds();
    long count = call();
    long took = milliseconds() - began;
    stop = 1;
    NEED(pthread_join(thread, NULL));
    say("%s: a part: %d, not before: %d, in time: %d", name, count > 0 && count < all, took >= LIMIT - 20,
        took < LONG);
}

int main(void)
{
    struct timeval limit = {LIMIT / 1000, LIMIT % 1000 * 1000};
    static const struct { const char *name; long (*call)(void); } receive[] = {
        {"recv", by_recv}, {"recvfrom", by_recvfrom}, {"recvmsg", by_recvmsg}, {"truncating", by_truncating},
        {"peeking", by_peeking}, {"read, by a mark", by_marked_read}, {"readv, by a mark", by_marked_readv},
    }, send[] = {{"send", by_send}, {"write", by_write}, {"writev", by_writev}};
    for (unsigned i = 0; i < sizeof receive / sizeof *receive; i++) {
        pair = promoted();
        NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        in_time(receive[i].name, receive[i].call, dribble, 100);
        close(pair.client);
        close(pair.server);
    }
    for (unsigned i = 0; i < sizeof send / sizeof *send; i++) {
        pair = promoted();
        NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
        in_time(send[i].name, send[i].call, sip, sizeof bytes);
        close(pair.client);
        close(pair.server);
    }
    return 0;
}
