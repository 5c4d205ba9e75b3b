/* MSG_PEEK tells of all that is here, wherever it lies: of a stream that fills more than a ring, and of one that goes on
 * behind the other end's shutdown. */
#include "transcript.h"

enum { MOST = 16 << 20, PIECE = 30000, ROUNDS = 12 };

static unsigned char bytes[MOST];

/* As much as goes without waiting; returns how much was sent by then. */
static uint64_t filled(int fd, uint64_t sent)
{
    for (;;) {
        fill(bytes, sent, PIECE);
        ssize_t count = send(fd, bytes, PIECE, MSG_DONTWAIT);
        if (count < 0)
            return sent;
        sent += count;
    }
}

static int here(int fd)
{
    int count;
    NEED(ioctl(fd, FIONREAD, &count));
    return count;
}

/* Whether a peek, in pieces too, gives what FIONREAD tells of, to which more may come meanwhile, and the bytes that come next. */
static bool sees_all(int fd, uint64_t got)
{
    int before = here(fd);
    long count = NEED(recv(fd, bytes, MOST, MSG_PEEK));
    bool all = before <= count && count <= here(fd) && same(bytes, got, count);
    memset(bytes, 0, count);
    before = here(fd);
    struct iovec parts[3] = {{bytes, 1000}, {bytes + 1000, before / 2}, {bytes + 1000 + before / 2, MOST / 2}};
    struct msghdr head = {.msg_iov = parts, .msg_iovlen = 3};
    count = NEED(recvmsg(fd, &head, MSG_PEEK));
    all = all && before <= count && count <= here(fd) && same(bytes, got, count);
    all = all && NEED(recv(fd, bytes, before - 5, MSG_PEEK)) == before - 5 && same(bytes, got, before - 5);
    return all && NEED(recv(fd, NULL, before, MSG_PEEK | MSG_TRUNC)) == before;
}

static void spilled(void)
{
    struct pair pair = promoted();
    uint64_t sent = 0, got = 0;
    int all = 0;
    for (int round = 0; round < ROUNDS; round++) {
        sent = filled(pair.client, sent);
        pause_ms(5);
        all += sees_all(pair.server, got);
        /* Now more, now less than the ring's part. */
        for (uint64_t until = got + (round % 3 + 1) * 4 * PIECE; got < until;)
            got += NEED(recv(pair.server, bytes, PIECE, 0));
        all += sees_all(pair.server, got);
    }
    say("saw all: %d of %d", all, 2 * ROUNDS);
    close(pair.client);
    close(pair.server);
}

static void behind_an_end(void)
{
    struct pair pair = promoted();
    char received[2000];
    memset(bytes, 'r', 48);
    memset(bytes + 48, 'k', 1012);
    SHOW(send(pair.client, bytes, 48, 0));
    SHOW(shutdown(pair.server, SHUT_WR));
    SHOW(recv(pair.client, received, 1, 0));
    SHOW(send(pair.client, bytes + 48, 1012, 0));
    wait_for(pair.server, 1060);
    SHOW(recv(pair.server, received, sizeof received, MSG_PEEK));
    SHOW(memcmp(received, bytes, 1060));
    SHOW(recv(pair.server, received, 1000, MSG_PEEK));
    SHOW(recv(pair.server, received, 1060, MSG_PEEK | MSG_WAITALL));
    SHOW(recv(pair.server, received, 1060, MSG_WAITALL));
    SHOW(memcmp(received, bytes, 1060));
    close(pair.client);
    close(pair.server);
}

int main(void)
{
    say("# more than a ring");
    spilled();
    say("# behind an end");
    behind_an_end();
    return 0;
}
