/* Messages for each of which somebody is woken, where no wait looks for them.
 * spins: 0 */
#include "transcript.h"

enum { ROUNDS = 4000, LONGEST = 300 };

enum way { BLOCKING, LEVEL, EDGE, ONCE, POLLED, WAYS };
static const char *const names[] = {"blocking", "level", "edge", "once", "polled"};

struct side {
    int fd;
    enum way way;
    uint32_t seed;
    unsigned char sum;
    long bytes, rounds;
};

/* The same for both ends. */
static uint32_t next(uint32_t *seed)
{
    return *seed = *seed * 1664525u + 1013904223u;
}

static int length_of(uint32_t number)
{
    return 1 + (int)(number >> 16) % LONGEST;
}

static void message(unsigned char *bytes, int count, uint32_t number)
{
    for (int at = 0; at < count; at++)
        bytes[at] = at % 7 == 3 ? 0 : (unsigned char)(number >> (at % 24));
}

/* Waits until something can be read. */
static void await_bytes(struct side *side, int set)
{
    if (side->way == POLLED) {
        struct pollfd one = {.fd = side->fd, .events = POLLIN};
        if (NEED(poll(&one, 1, 30000)) == 0)
            fail("poll never ended");
    } else if (set >= 0) {
        struct epoll_event event = {0};
        if (NEED(epoll_wait(set, &event, 1, 30000)) == 0)
            fail("epoll_wait never ended");
        if (event.data.u64 != 77 || event.events != EPOLLIN)
            fail("another event");
        if (side->way == ONCE) {
            event.events = EPOLLIN | EPOLLONESHOT;
            NEED(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
        }
    }
}

static int make_set(struct side *side)
{
    static const uint32_t asked[] = {0, EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, 0};
    if (side->way == BLOCKING)
        return -1;
    NEED(fcntl(side->fd, F_SETFL, O_NONBLOCK));
    if (side->way == POLLED)
        return -1;
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = asked[side->way], .data.u64 = 77};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    return set;
}

/* Reads so many bytes; whoever is told of edges reads until there is nothing. */
static void read_all(struct side *side, int set, unsigned char *bytes, int count)
{
    int done = 0;
    while (done < count) {
        long got = recv(side->fd, bytes + done, count - done, 0);
        if (got > 0)
            done += got;
        else if (got == 0)
            fail("the end came early");
        else if (errno == EAGAIN)
            await_bytes(side, set);
        else if (errno != EINTR)
            fail("recv");
    }
}

static void write_all(struct side *side, const unsigned char *bytes, int count)
{
    for (int done = 0; done < count;)
        done += NEED(send(side->fd, bytes + done, count - done, 0));
}

static void *answers(void *argument)
{
    struct side *side = argument;
    unsigned char bytes[LONGEST], wanted[LONGEST];
    int set = make_set(side);
    for (; side->rounds < ROUNDS; side->rounds++) {
        uint32_t number = next(&side->seed);
        int count = length_of(number);
        read_all(side, set, bytes, count);
        message(wanted, count, number);
        if (memcmp(bytes, wanted, count) != 0)
            fail("other bytes were sent");
        side->bytes += count;
        /* Sometimes in two pieces. */
        int first = side->rounds % 64 ? count : count / 2;
        write_all(side, bytes, first);
        write_all(side, bytes + first, count - first);
    }
    if (set >= 0)
        close(set);
    return NULL;
}

static void converse(enum way asks, enum way replies)
{
    struct pair pair = connected();
    struct side asker = {pair.client, asks, 5, 0, 0, 0}, other = {pair.server, replies, 5, 0, 0, 0};
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, answers, &other));
    unsigned char bytes[LONGEST], back[LONGEST];
    int set = make_set(&asker);
    for (; asker.rounds < ROUNDS; asker.rounds++) {
        uint32_t number = next(&asker.seed);
        int count = length_of(number);
        message(bytes, count, number);
        write_all(&asker, bytes, count);
        read_all(&asker, set, back, count);
        if (memcmp(bytes, back, count) != 0)
            fail("other bytes came back");
        asker.bytes += count;
    }
    NEED(-pthread_join(thread, NULL));
    say("%s asks, %s replies: %ld rounds, %ld and %ld bytes", names[asks], names[replies], asker.rounds,
        asker.bytes, other.bytes);
    fcntl(pair.client, F_SETFL, 0);
    if (replies == EDGE) {
        SHOW(send(pair.client, "unread", 6, 0));
        wait_for(pair.server, 6);
        SHOW(close(pair.server));
        char byte;
        SHOW(recv(pair.client, &byte, 1, 0));
        SHOW(recv(pair.client, &byte, 1, 0));
    } else {
        SHOW(shutdown(pair.server, SHUT_WR));
        char byte;
        SHOW(recv(pair.client, &byte, 1, 0));
        SHOW(send(pair.client, "more", 4, 0));
        wait_for(pair.server, 4);
        SHOW(recv(pair.server, back, sizeof back, 0));
        close(pair.server);
    }
    if (set >= 0)
        close(set);
    close(pair.client);
}

int main(void)
{
    for (enum way replies = BLOCKING; replies < WAYS; replies++)
        converse(BLOCKING, replies);
    for (enum way asks = LEVEL; asks < WAYS; asks++)
        converse(asks, asks);
    return 0;
}
