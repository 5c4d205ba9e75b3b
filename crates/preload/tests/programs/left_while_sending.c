/* A connection goes back to TCP while other threads of its process send and receive on it: nothing is sent twice, and
 * nothing that was taken is lost. */
#include "transcript.h"

enum { ROUNDS = 150, PIECE = 100000, PIECES = 6, TOTAL = PIECE * PIECES };

static void *sends(void *argument)
{
    int fd = *(int *)argument;
    static __thread unsigned char piece[PIECE];
    for (int done = 0; done < TOTAL; done += PIECE) {
        fill(piece, done, PIECE);
        if (NEED(send(fd, piece, PIECE, 0)) != PIECE)
            fail("a blocking send sends all");
    }
    return NULL;
}

static void *receives(void *argument)
{
    int fd = *(int *)argument;
    static __thread unsigned char piece[PIECE];
    for (int done = 0; done < TOTAL; done += PIECE) {
        if (NEED(recv(fd, piece, PIECE, MSG_WAITALL)) != PIECE)
            fail("MSG_WAITALL takes all");
        if (!same(piece, done, PIECE))
            fail("other bytes were sent");
    }
    return NULL;
}

/* Gives a descriptor to somebody who gives it back: from here on the kernel alone has the connection. */
static void pass(int fd)
{
    int through[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, through));
    give_fd(through[0], fd);
    close(through[0]);
    close(through[1]);
}

int main(void)
{
    uint32_t seed = 1;
    for (int round = 0; round < ROUNDS; round++) {
        /* Which end gives it away, whether it sends or receives at that time, and when. */
        struct pair pair = promoted();
        int *from = round % 2 ? &pair.client : &pair.server, *to = round % 2 ? &pair.server : &pair.client;
        pthread_t sender, receiver;
        NEED(-pthread_create(&sender, NULL, sends, from));
        NEED(-pthread_create(&receiver, NULL, receives, to));
        seed = seed * 1664525u + 1013904223u;
        usleep((seed >> 16) % 400);
        if (round % 4 < 2)
            pass(*from);
        NEED(-pthread_join(sender, NULL));
        NEED(-pthread_join(receiver, NULL));
        close(pair.client);
        close(pair.server);
    }
    say("%d connections", ROUNDS);
    return 0;
}
