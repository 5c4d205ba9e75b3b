/* A process that is killed in the middle of a call on a connection that others have, too, and
 * that nobody has waited for yet. */
#include "transcript.h"

enum { BYTES = 32 << 10, KILLS = 20 };

static char sent[BYTES], got[BYTES];

int main(void)
{
    struct pair pair = promoted();
    for (int at = 0; at < BYTES; at++)
        sent[at] = at * 7;
    for (int round = 0; round < KILLS; round++) {
        int begun[2];
        char byte;
        NEED(pipe(begun));
        send_all(pair.client, sent, BYTES);
        pid_t child = NEED(fork());
        if (child == 0) {
            /* Takes nothing, and is in a call nearly all the time. */
            for (int peek = 0;; peek++) {
                NEED(recv(pair.server, got, BYTES, MSG_PEEK | MSG_DONTWAIT));
                if (peek == 100)
                    NEED(write(begun[1], "", 1));
            }
        }
        NEED(read(begun[0], &byte, 1));
        NEED(kill(child, SIGKILL));
        siginfo_t end;
        NEED(waitid(P_PID, child, &end, WEXITED | WNOWAIT));
        take_all(pair.server, got, BYTES);
        say("after kill %d: %s", round, memcmp(sent, got, BYTES) ? "wrong" : "right");
        NEED(waitpid(child, NULL, 0));
        close(begun[0]);
        close(begun[1]);
    }
    SHOW(send(pair.server, "alive", 5, 0));
    SHOW(recv(pair.client, got, sizeof got, 0));
    return 0;
}
