/* close_range(2) and closefrom(3) over sockets, and what becomes of the other ends. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    NEED(dup2(pair.server, 500));
    close(pair.server);
    SHOW(send(500, "before", 6, 0));
    SHOW(close_range(501, 600, 0));
    SHOW(send(500, "after", 5, 0));
    SHOW(close_range(499, 600, CLOSE_RANGE_CLOEXEC));
    SHOW(fcntl(500, F_GETFD));
    SHOW(close_range(600, 499, 0));
    SHOW(close_range(499, 600, 0x100));
    wait_for(pair.client, 11);
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(close_range(499, 600, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(send(500, "x", 1, 0));
    pair = promoted();
    NEED(dup2(pair.server, 500));
    close(pair.server);
    SHOW(send(pair.client, "unread", 6, 0));
    wait_for(500, 6);
    closefrom(400);
    SHOW(recv(500, bytes, sizeof bytes, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(close_range(pair.client, ~0u, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    pair = promoted();
    SHOW(send(pair.client, "works", 5, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    return 0;
}
