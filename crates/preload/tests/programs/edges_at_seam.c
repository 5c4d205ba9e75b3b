/* Edge-triggered readers that take a short read, or FIONREAD bytes used up, for the end of what is there, and wait for the
 * next edge then. The stream fills the ring, goes on in the kernel, and comes back: however much is read at a time, and how,
 * and whether the set is asked in between, an edge comes for each byte that such a reader has not met. */
#include "transcript.h"

enum { TOTAL = 700000, PATIENCE = 3000 };
static const size_t sizes[] = {1, 100, 536, 1000, 4096, 5000, 16384, 65536, 300000};
enum { SIZES = sizeof sizes / sizeof sizes[0], PIECES = 40, LOTS = 3 };

/* How it reads. */
enum { RECV, THREE_PIECES, MANY_PIECES, COUNTED, COUNTED_BEFORE, PEEKED, MESSAGES, HOWS };
static const char *const hows[] = {"recv", "readv of 3", "readv of 40", "recv, then FIONREAD", "FIONREAD, then recv",
                                   "MSG_PEEK, then recv", "recvmmsg"};

static unsigned lot;

static unsigned draw(unsigned most)
{
    lot = lot * 1103515245 + 12345;
    return (lot >> 8) % most;
}

static struct {
    struct pair pair;
    int set, how;
    size_t size, sent, got;
    /* As far as the reader knows there is more; and how much, if FIONREAD has said so, or -1. */
    bool ready;
    int available;
} now;

static unsigned char bytes[300000 + PIECES];

static void edge(int timeout)
{
    struct epoll_event event;
    long end = milliseconds() + timeout;
    do {
        int count = NEED(epoll_wait(now.set, &event, 1, end - milliseconds() > 0 ? end - milliseconds() : 0));
        if (count && event.events & EPOLLIN) {
            now.ready = true;
            now.available = -1;
        }
    } while (!now.ready && milliseconds() < end);
}

/* Sends some messages, or as many as there is room for. */
static void sends(void)
{
    static unsigned char message[3000];
    unsigned longest = draw(3) ? 100 : sizeof message;
    for (int count = draw(3) ? 1 + draw(50) : 1 << 20; count && now.sent < TOTAL; count--) {
        size_t length = 1 + draw(longest);
        length = length < TOTAL - now.sent ? length : TOTAL - now.sent;
        fill(message, now.sent, length);
        ssize_t sent = send(now.pair.client, message, length, 0);
        if (sent < 0 && errno == EAGAIN)
            return;
        now.sent += NEED(sent);
    }
}

static ssize_t read_pieces(int pieces)
{
    struct iovec vector[PIECES];
    size_t each = now.size / pieces + 1;
    for (int piece = 0; piece < pieces; piece++)
        vector[piece] = (struct iovec){bytes + piece * each, each};
    now.size = each * pieces;
    return readv(now.pair.server, vector, pieces);
}

/* Two messages. */
static ssize_t read_messages(void)
{
    size_t first = now.size / 2 + 1;
    struct iovec vector[2] = {{bytes, first}, {bytes + first, first}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &vector[0], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &vector[1], .msg_iovlen = 1}}};
    now.size = 2 * first;
    int count = recvmmsg(now.pair.server, messages, 2, 0, NULL);
    if (count == 2 && messages[0].msg_len < first)
        /* The second came later, and there is no hole. */
        memmove(bytes + messages[0].msg_len, bytes + first, messages[1].msg_len);
    return count < 0 ? -1 : (ssize_t)messages[0].msg_len + (count == 2 ? (ssize_t)messages[1].msg_len : 0);
}

static ssize_t reads(void)
{
    int fd = now.pair.server, here;
    switch (now.how) {
    case THREE_PIECES:
        return read_pieces(3);
    case MANY_PIECES:
        return read_pieces(PIECES);
    case MESSAGES:
        return read_messages();
    case COUNTED_BEFORE:
        NEED(ioctl(fd, FIONREAD, &here));
        if ((size_t)here < now.size) {
            /* No more than these is read, and nothing behind them is asked for. */
            ssize_t count = here ? recv(fd, bytes, here, 0) : 0;
            now.size = here + 1;
            return count;
        }
        return recv(fd, bytes, now.size, 0);
    case PEEKED: {
        ssize_t seen = recv(fd, bytes, now.size, MSG_PEEK);
        if (seen < 0)
            return seen;
        ssize_t count = recv(fd, bytes, seen, 0);
        return count < seen ? -1 : count;
    }
    default:
        return recv(fd, bytes, now.size, 0);
    }
}

/* False: the bytes are not those that were sent. */
static bool takes(size_t size)
{
    now.size = size;
    ssize_t count = reads();
    if (count < 0) {
        now.ready = false;
        return errno == EAGAIN;
    }
    bool right = same(bytes, now.got, count);
    now.got += count;
    if (now.available >= 0) {
        /* What came since was another edge. */
        now.available -= count < now.available ? count : now.available;
    } else if (now.how == COUNTED && (size_t)count == now.size) {
        NEED(ioctl(now.pair.server, FIONREAD, &now.available));
    }
    now.ready = (size_t)count == now.size && now.available != 0;
    return right;
}

/* One connection; what became of it. */
static bool whole(int how, size_t size, bool looks, unsigned seed)
{
    lot = seed;
    now.pair = promoted();
    now.how = how;
    now.sent = now.got = 0;
    now.ready = false;
    now.set = NEED(epoll_create1(0));
    nonblocking(now.pair.client);
    nonblocking(now.pair.server);
    int room = 4 << 20;
    if (seed % 2)
        NEED(setsockopt(now.pair.client, SOL_SOCKET, SO_SNDBUF, &room, sizeof room));
    NEED(add(now.set, now.pair.server, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    bool right = true;
    while (right && now.got < TOTAL) {
        if (!now.ready || draw(size < 1000 ? 2000 : 20) == 0)
            sends();
        if (!now.ready && now.got < now.sent) {
            edge(PATIENCE);
            if (!now.ready) {
                say("%s, %zu bytes at a time, %s, %u: no edge after %zu of %zu", hows[how], size, looks ? "looks" : "reads",
                    seed, now.got, now.sent);
                right = false;
            }
        } else if (looks && draw(3) == 0) {
            edge(0);
        }
        if (right && now.ready && !takes(size)) {
            say("%s, %zu bytes at a time: not what was sent, before %zu", hows[how], size, now.got);
            right = false;
        }
    }
    NEED(close(now.set));
    NEED(close(now.pair.client));
    NEED(close(now.pair.server));
    return right;
}

int main(void)
{
    for (int how = 0; how < HOWS; how++)
        for (int at = 0; at < SIZES; at++) {
            int cases = 0, right = 0;
            for (unsigned seed = 1; seed <= (sizes[at] < 100 ? 1 : LOTS); seed++)
                for (int looks = 0; looks < 2; looks++, cases++)
                    right += whole(how, sizes[at], looks, seed);
            say("%s, %zu bytes at a time: %d of %d", hows[how], sizes[at], right, cases);
        }
    return 0;
}
