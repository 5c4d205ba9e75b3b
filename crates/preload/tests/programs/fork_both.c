/* fork(2): parent and child use both ends, in turn and at once. */
#include "transcript.h"

enum { ROUNDS = 500, SIZE = 1000 };

static void ended(pid_t child)
{
    int status;
    NEED(waitpid(child, &status, 0));
    say("the child ended with %d", status);
}

int main(void)
{
    struct pair pair = promoted();
    char bytes[64];
    /* The child has one end, the parent the other. */
    pid_t child = NEED(fork());
    if (child == 0) {
        close(pair.client);
        for (int round = 0; round < ROUNDS; round++) {
            take_all(pair.server, bytes, 10);
            send_all(pair.server, bytes, 10);
        }
        _exit(0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        char sent[10], got[10];
        memset(sent, 'a' + round % 26, sizeof sent);
        send_all(pair.client, sent, 10);
        take_all(pair.client, got, 10);
        if (memcmp(sent, got, 10))
            say("wrong bytes");
    }
    ended(child);

    /* The same end in turn: a pipe tells whose turn it is. */
    int turn[2], back[2];
    NEED(pipe(turn));
    NEED(pipe(back));
    child = NEED(fork());
    for (int round = 0; round < 20; round++) {
        char token;
        if (child == 0) {
            if (read(turn[0], &token, 1) != 1)
                _exit(1);
            take_all(pair.server, bytes, 3);
            send_all(pair.server, "child", 5);
            if (memcmp(bytes, "odd", 3) || write(back[1], "", 1) != 1)
                _exit(2);
        } else {
            send_all(pair.client, "evenodd", 7);
            take_all(pair.server, bytes, 4);
            if (memcmp(bytes, "even", 4))
                say("wrong bytes");
            if (write(turn[1], "", 1) != 1 || read(back[0], &token, 1) != 1)
                fail("turn");
            send_all(pair.server, "parent", 6);
            take_all(pair.client, bytes, 11);
            bytes[11] = 0;
            if (strcmp(bytes, "childparent"))
                say("%s", bytes);
        }
    }
    if (child == 0)
        _exit(0);
    ended(child);

    /* Both write at once; each piece is whole. */
    child = NEED(fork());
    static char piece[SIZE];
    memset(piece, child ? 'p' : 'c', SIZE);
    if (child == 0) {
        for (int round = 0; round < ROUNDS; round++)
            send_all(pair.server, piece, SIZE);
        _exit(0);
    }
    pid_t other = NEED(fork());
    if (other == 0) {
        long counts[2] = {0};
        static char got[SIZE];
        for (int round = 0; round < 2 * ROUNDS; round++) {
            take_all(pair.client, got, SIZE);
            for (int at = 0; at < SIZE; at++)
                counts[got[at] == 'p']++;
        }
        say("each wrote %ld and %ld", counts[0], counts[1]);
        _exit(0);
    }
    for (int round = 0; round < ROUNDS; round++)
        send_all(pair.server, piece, SIZE);
    ended(other);
    ended(child);
    SHOW(send(pair.server, "again", 5, 0));
    SHOW(recv(pair.client, bytes, 5, MSG_WAITALL));
    return 0;
}
