/* A sender whose kernel socket is full comes back to memory as soon as its reader has come to
 * the end of it: there is no room for a bell then, and what it sends is to be told of all the
 * same, once the reader has taken exactly what came before. */
#include "transcript.h"

/* A little more than memory takes of a sender with a small buffer. */
enum { IN_MEMORY = 34000, LAST = 10 };
static unsigned char bytes[1 << 20], in[1 << 20];

static void take(int fd, long from, long count)
{
    while (count > 0) {
        ssize_t took = recv(fd, in, count, 0);
        if (took < 0 && errno == EAGAIN) {
            pause_ms(1);
            continue;
        }
        if (NEED(took) == 0 || !same(in, from, took))
            say("wrong bytes");
        from += took;
        count -= took;
    }
}

static void round_of(const char *way, unsigned events)
{
    struct pair pair = promoted();
    int small = 4096, set = NEED(epoll_create1(0));
    NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
    nonblocking(pair.client);
    nonblocking(pair.server);
    if (events != 0) {
        NEED(add(set, pair.server, events, 1));
        show_epoll("nothing", set, 0);
    }
    long sent = 0, count;
    fill(bytes, 0, sizeof bytes);
    /* Until acknowledgements make no more room. */
    for (long before = -1; before < sent; pause_ms(50))
        for (before = sent; (count = send(pair.client, bytes + sent, 5000, 0)) > 0;)
            sent += count;
    say("%s: it is full", way);
    long first = sent > IN_MEMORY ? IN_MEMORY : sent / 2;
    if (events != 0)
        show_epoll("arrival", set, -1);
    take(pair.server, 0, first);
    /* TCP takes these later, when there is room. */
    bool there = send(pair.client, bytes + sent, LAST, 0) == LAST;
    take(pair.server, first, sent - first);
    if (!there && send(pair.client, bytes + sent, LAST, 0) != LAST)
        fail("send");
    if (events != 0)
        show_epoll("the last", set, -1);
    else
        show_poll("the last", pair.server, POLLIN, -1);
    take(pair.server, sent, LAST);
    NEED(close(set));
    NEED(close(pair.server));
    NEED(close(pair.client));
}

int main(void)
{
    round_of("poll", 0);
    round_of("level", EPOLLIN);
    round_of("edge", EPOLLIN | EPOLLET);
    return 0;
}
