/* splice(2) between sockets and pipes. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[64] = {0};
    int pipes[2];
    NEED(pipe(pipes));
    SHOW(write(pipes[1], "through a pipe", 14));
    SHOW(splice(pipes[0], NULL, pair.client, NULL, 7, 0));
    SHOW(splice(pipes[0], NULL, pair.client, NULL, 100, SPLICE_F_MOVE));
    SHOW(splice(pipes[0], NULL, pair.client, NULL, 100, SPLICE_F_NONBLOCK));
    SHOW(recv(pair.server, bytes, 14, MSG_WAITALL));
    show_bytes("recv", bytes, 14);
    nonblocking(pair.server);
    SHOW(splice(pair.server, NULL, pipes[1], NULL, 100, SPLICE_F_NONBLOCK));
    NEED(fcntl(pair.server, F_SETFL, 0));
    SHOW(send(pair.client, "and back", 8, 0));
    wait_for(pair.server, 8);
    SHOW(splice(pair.server, NULL, pipes[1], NULL, 3, 0));
    SHOW(splice(pair.server, NULL, pipes[1], NULL, 100, 0));
    SHOW(read(pipes[0], bytes, sizeof bytes));
    show_bytes("read", bytes, 8);
    SHOW(splice(pair.server, NULL, pair.client, NULL, 8, 0));
    loff_t at = 0;
    SHOW(splice(pair.server, &at, pipes[1], NULL, 8, 0));
    SHOW(splice(pair.server, NULL, pipes[1], NULL, 0, 0));
    /* A proxy: one socket to another by a pipe. */
    struct pair other = promoted();
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "proxied", 7, 0));
        wait_for(pair.server, 7);
        SHOW(splice(pair.server, NULL, pipes[1], NULL, 4096, SPLICE_F_NONBLOCK | SPLICE_F_MOVE));
        SHOW(splice(pipes[0], NULL, other.client, NULL, 4096, SPLICE_F_NONBLOCK | SPLICE_F_MOVE));
        SHOW(recv(other.server, bytes, 7, MSG_WAITALL));
        show_bytes("recv", bytes, 7);
    }
    SHOW(close(pair.client));
    SHOW(splice(pair.server, NULL, pipes[1], NULL, 100, 0));
    SHOW(close(pipes[1]));
    SHOW(splice(pipes[0], NULL, other.client, NULL, 100, 0));
    return 0;
}
