/* A child executes a program that gets none of the connections, as servers start helpers: who closes one later is the last
 * that has it, and unread bytes are a reset. An exec that fails changes nothing. */
#include "transcript.h"

enum how { EXECUTES, FAILS, FAILS_AND_CLOSES };

static void try(enum how how)
{
    struct pair pair = promoted();
    NEED(fcntl(pair.client, F_SETFD, FD_CLOEXEC));
    NEED(fcntl(pair.server, F_SETFD, FD_CLOEXEC));
    int go[2];
    NEED(pipe(go));
    pid_t child = NEED(fork());
    if (child == 0) {
        char *none[] = {"true", NULL};
        close(go[1]);
        execv(how == EXECUTES ? "/bin/true" : "/nowhere", none);
        if (how == FAILS) {
            /* It still has both ends, and the parent's close ends nothing. */
            char byte;
            (void)!read(go[0], &byte, 1);
            send_all(pair.server, "still", 5);
            close(pair.server);
        }
        _exit(0);
    }
    close(go[0]);
    if (how != FAILS)
        status_of(child);
    SHOW(send(pair.client, "unread", 6, 0));
    wait_for(pair.server, 6);
    SHOW(close(pair.server));
    char bytes[8] = {0};
    close(go[1]);
    SHOW(recv(pair.client, bytes, 5, MSG_WAITALL));
    if (how == FAILS) {
        show_bytes("from the child", bytes, 5);
        SHOW(recv(pair.client, bytes, 5, 0));
        status_of(child);
    }
    SHOW(close(pair.client));
}

int main(void)
{
    say("# a program is executed");
    try(EXECUTES);
    say("# none is, and the child ends");
    try(FAILS_AND_CLOSES);
    say("# none is, and the child goes on");
    try(FAILS);
    return 0;
}
