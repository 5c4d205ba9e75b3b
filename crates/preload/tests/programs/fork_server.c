/* A server that forks for each connection, and closes it in the parent; the child's end is the
 * connection's. */
#include "transcript.h"

int main(void)
{
    char bytes[64];
    struct pair kept = promoted();
    for (int connection = 0; connection < 3; connection++) {
        struct pair pair = promoted();
        pid_t child = NEED(fork());
        if (child == 0) {
            close(pair.client);
            echo_all(pair.server, 200, 20);
            send_all(pair.server, "bye", 3);
            _exit(0);
        }
        SHOW(close(pair.server));
        say("echo: %s", is_echoed(pair.client, 200, 20) ? "right" : "wrong");
        SHOW(recv(pair.client, bytes, 3, MSG_WAITALL));
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        status_of(child);
        SHOW(close(pair.client));
    }
    /* A child that dies leaves the parent's connections as they are. */
    pid_t child = NEED(fork());
    if (child == 0)
        raise(SIGKILL);
    int status;
    NEED(waitpid(child, &status, 0));
    for (int round = 0; round < 3; round++) {
        SHOW(send(kept.client, "kept", 4, 0));
        SHOW(recv(kept.server, bytes, sizeof bytes, 0));
    }
    /* The child reads what the parent was sent before the fork, and exits; so the parent hears
     * of the rest alone. */
    SHOW(send(kept.client, "before", 6, 0));
    wait_for(kept.server, 6);
    child = NEED(fork());
    if (child == 0) {
        SHOW(recv(kept.server, bytes, 3, 0));
        show_bytes("child", bytes, 3);
        _exit(0);
    }
    NEED(waitpid(child, &status, 0));
    SHOW(recv(kept.server, bytes, sizeof bytes, 0));
    show_bytes("parent", bytes, 3);
    SHOW(close(kept.client));
    SHOW(recv(kept.server, bytes, sizeof bytes, 0));
    return 0;
}
