/* What MSG_PEEK and FIONREAD tell of is what the next read gets, also where the sender's call has not ended yet. */
#include "transcript.h"

enum { PIECE = 66000, PIECES = 150, ROOM = 1 << 20 };
static const size_t TOTAL = (size_t)PIECE * PIECES;

static void *sends(void *argument)
{
    static unsigned char piece[PIECE];
    for (size_t done = 0; done < TOTAL; done += PIECE) {
        fill(piece, done, PIECE);
        if (NEED(send(*(int *)argument, piece, PIECE, 0)) != PIECE)
            fail("a blocking send sends all");
    }
    return NULL;
}

/* How many bytes a call says are here, which waits for some if it can. */
static int told(int fd, bool peeks, unsigned char *bytes)
{
    int count = 0;
    if (peeks)
        return NEED(recv(fd, bytes, ROOM, MSG_PEEK));
    wait_for(fd, 1);
    NEED(ioctl(fd, FIONREAD, &count));
    return count < ROOM ? count : ROOM;
}

static void stream(bool peeks)
{
    static unsigned char bytes[ROOM];
    struct pair pair = promoted();
    pthread_t sender;
    NEED(-pthread_create(&sender, NULL, sends, &pair.client));
    size_t done = 0;
    while (done < TOTAL) {
        int count = told(pair.server, peeks, bytes);
        memset(bytes, 0, count);
        if (NEED(recv(pair.server, bytes, count, 0)) != count)
            fail("fewer bytes than were told of");
        if (!same(bytes, done, count))
            fail("other bytes");
        done += count;
    }
    NEED(-pthread_join(sender, NULL));
    say("%s: %zu bytes", peeks ? "MSG_PEEK" : "FIONREAD", done);
    close(pair.client);
    close(pair.server);
}

int main(void)
{
    for (int round = 0; round < 6; round++)
        stream(round % 2);
    return 0;
}
