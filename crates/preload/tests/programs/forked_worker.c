/* A worker that was forked, with many connections: all are promoted, though none has proved anything yet. Fewer messages
 * than a forked process with a connection of its own would wait for then.
 * promotes: 48 */
#include "transcript.h"

enum { CONNECTIONS = 24, ROUNDS = 28, QUICK = 20, PAUSE_US = 30000 };

static void serve(int listener)
{
    int fds[CONNECTIONS];
    char bytes[8];
    for (int at = 0; at < CONNECTIONS; at++)
        fds[at] = NEED(accept(listener, NULL, NULL));
    for (int round = 0; round < ROUNDS; round++)
        for (int at = 0; at < CONNECTIONS; at++) {
            if (recv(fds[at], bytes, sizeof bytes, 0) != 4)
                fail("no request");
            send_all(fds[at], bytes, 4);
        }
    _exit(0);
}

int main(void)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    NEED(listen(listener, CONNECTIONS));
    pid_t worker = NEED(fork());
    if (worker == 0)
        serve(listener);
    int fds[CONNECTIONS];
    for (int one = 0; one < CONNECTIONS; one++) {
        fds[one] = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fds[one], (struct sockaddr *)&at, sizeof at));
    }
    int right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int one = 0; one < CONNECTIONS; one++) {
            char bytes[] = {round, one, 'o', 'k'}, answer[8];
            send_all(fds[one], bytes, 4);
            right += recv(fds[one], answer, sizeof answer, 0) == 4 && memcmp(bytes, answer, 4) == 0;
        }
        /* Answers of the monitor come meanwhile. */
        if (round >= QUICK)
            usleep(PAUSE_US);
    }
    say("%d of %d echoes right", right, CONNECTIONS * ROUNDS);
    status_of(worker);
    return 0;
}
