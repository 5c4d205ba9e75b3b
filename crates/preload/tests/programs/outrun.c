/* A sender that outruns its reader: partial writes, EAGAIN, EPOLLOUT, and a hundred megabytes
 * in their order. */
#include "transcript.h"

enum { CHUNK = 1 << 16 };
static const uint64_t TOTAL = 100ull << 20;
static struct pair pair;
static unsigned char out[CHUNK], in[CHUNK * 3];

/* Sends until the socket takes no more; returns the place that was come to. */
static uint64_t stuff(uint64_t place)
{
    for (;;) {
        fill(out, place, CHUNK);
        ssize_t sent = send(pair.client, out, CHUNK, 0);
        if (sent < 0) {
            if (errno != EAGAIN)
                fail("send");
            return place;
        }
        place += sent;
    }
}

static void *reader(void *argument)
{
    uint64_t place = *(uint64_t *)argument;
    while (place < TOTAL) {
        /* Sizes that fit nothing. */
        ssize_t took = recv(pair.server, in, 1 + place % sizeof in, 0);
        if (took <= 0)
            fail("recv");
        if (!same(in, place, took)) {
            say("wrong bytes");
            return NULL;
        }
        place += took;
    }
    say("all bytes came in their order");
    return NULL;
}

int main(void)
{
    pair = promoted();
    nonblocking(pair.client);
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.client, EPOLLOUT, 1));
    show_epoll("empty", set, -1);
    uint64_t sent = stuff(0);
    say("something was sent: %d", sent > CHUNK);
    show_epoll("full", set, 50);
    show_poll("full", pair.client, POLLOUT, 0);
    /* Some is read, some more is sent. */
    uint64_t taken = 0;
    while (taken < sent) {
        ssize_t took = NEED(recv(pair.server, in, sizeof in, MSG_DONTWAIT));
        if (!same(in, taken, took))
            say("wrong bytes");
        taken += took;
    }
    SHOW(recv(pair.server, in, 1, MSG_DONTWAIT));
    show_epoll("empty again", set, -1);
    uint64_t place = sent;
    pthread_t thread;
    pthread_create(&thread, NULL, reader, &taken);
    long waits = 0;
    while (place < TOTAL) {
        size_t chunk = TOTAL - place < CHUNK ? TOTAL - place : CHUNK;
        fill(out, place, chunk);
        ssize_t took = send(pair.client, out, chunk, 0);
        if (took < 0) {
            struct epoll_event event;
            if (errno != EAGAIN || epoll_wait(set, &event, 1, 20000) != 1)
                fail("epoll_wait");
            waits++;
            continue;
        }
        place += took;
    }
    pthread_join(thread, NULL);
    /* The same the other way, with both ends blocking. */
    warm((NEED(fcntl(pair.client, F_SETFL, 0)), pair));
    pair = (struct pair){pair.server, pair.client};
    taken = 0;
    pthread_create(&thread, NULL, reader, &taken);
    for (place = 0; place < TOTAL;) {
        size_t chunk = TOTAL - place < CHUNK ? TOTAL - place : CHUNK;
        fill(out, place, chunk);
        ssize_t took = NEED(send(pair.client, out, chunk, 0));
        if (took != (ssize_t)chunk)
            say("a blocking send took %zd of %zu", took, chunk);
        place += took;
    }
    pthread_join(thread, NULL);
    return 0;
}
