/* splice(2) from a pipe to a socket whose peer reads slowly, or not at all: no call that may not wait
 * does, and each byte that is not sent stays in the pipe, whatever the call came to. */
#include "transcript.h"

static char bytes[1 << 16], back[1 << 16];
static unsigned char next_in, next_out;

/* Bytes of which each shows a lost one before it. */
static void feed(int pipe)
{
    for (;;) {
        for (int i = 0; i < 4096; i++)
            bytes[i] = (char)(unsigned char)(next_in + i);
        ssize_t put = write(pipe, bytes, 4096);
        if (put < 0)
            return;
        next_in = (unsigned char)(next_in + put);
    }
}

static int check(const char *from, long count)
{
    for (long i = 0; i < count; i++)
        if ((unsigned char)from[i] != next_out++)
            return 0;
    return 1;
}

static void *read_all(void *number)
{
    int fd = *(int *)number, right = 1;
    long count;
    while ((count = recv(fd, back, 999, 0)) > 0) {
        right &= check(back, count);
        usleep(100);
    }
    return (void *)(long)right;
}

int main(void)
{
    int pipes[2];
    NEED(pipe2(pipes, O_NONBLOCK));
    /* The flag is about the pipe, and changes nothing for the socket. */
    for (int by_flag = 0; by_flag < 2; by_flag++) {
        struct pair pair = promoted();
        int small = 1 << 16;
        NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
        next_in = next_out = 0;
        nonblocking(pair.client);
        long moved = 0, count, began = milliseconds();
        for (;;) {
            feed(pipes[1]);
            count = splice(pipes[0], NULL, pair.client, NULL, 1 << 20,
                           SPLICE_F_MOVE | (by_flag ? SPLICE_F_NONBLOCK : 0));
            if (count < 0)
                break;
            moved += count;
        }
        say("splice = %ld %s, in time: %d", count, strerrorname_np(errno), milliseconds() - began < 5000);
        /* A slow reader makes room, and all arrives in order. */
        pthread_t reader;
        NEED(pthread_create(&reader, NULL, read_all, &pair.server));
        NEED(fcntl(pair.client, F_SETFL, 0));
        int left;
        while (NEED(ioctl(pipes[0], FIONREAD, &left)), left > 0)
            moved += NEED(splice(pipes[0], NULL, pair.client, NULL, 5000, SPLICE_F_MOVE));
        NEED(shutdown(pair.client, SHUT_WR));
        void *right;
        NEED(pthread_join(reader, &right));
        say("all in order: %ld, nothing lost: %d", (long)right, next_in == next_out);
        close(pair.client);
        close(pair.server);
    }

    /* An error takes nothing from the pipe. */
    signal(SIGPIPE, SIG_IGN);
    struct pair pair = promoted();
    NEED(shutdown(pair.client, SHUT_WR));
    SHOW(write(pipes[1], "kept", 4));
    SHOW(splice(pipes[0], NULL, pair.client, NULL, 100, SPLICE_F_NONBLOCK));
    SHOW(splice(pipes[0], NULL, pair.client, NULL, 100, 0));
    SHOW(read(pipes[0], back, sizeof back));
    show_bytes("read", back, 4);

    /* Nor does one that ran out of its time. */
    pair = promoted();
    struct timeval limit = {0, 100000};
    NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    next_in = next_out = 0;
    long count, sent = 0;
    do {
        feed(pipes[1]);
        count = splice(pipes[0], NULL, pair.client, NULL, 1 << 20, 0);
        sent += count > 0 ? count : 0;
    } while (count > 0);
    say("splice = %ld %s", count, strerrorname_np(errno));
    int kept, right = 1;
    NEED(ioctl(pipes[0], FIONREAD, &kept));
    for (long got; sent > 0; sent -= got) {
        got = NEED(recv(pair.server, back, sizeof back < (size_t)sent ? sizeof back : (size_t)sent, 0));
        right &= check(back, got);
    }
    for (int got; kept > 0; kept -= got) {
        got = (int)NEED(read(pipes[0], back, sizeof back));
        right &= check(back, got);
    }
    say("all in order: %d, nothing lost: %d", right, next_in == next_out);

    /* The other way: a pipe that is full leaves the bytes in the socket. */
    feed(pipes[1]);
    SHOW(send(pair.client, "waits", 5, 0));
    wait_for(pair.server, 5);
    SHOW(splice(pair.server, NULL, pipes[1], NULL, 100, SPLICE_F_NONBLOCK));
    SHOW(recv(pair.server, back, 5, 0));
    show_bytes("recv", back, 5);
    return 0;
}
