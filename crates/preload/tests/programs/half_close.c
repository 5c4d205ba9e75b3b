/* shutdown(2), either way, on either end. */
#include "transcript.h"

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    char bytes[16] = {0};
    struct pair pair = promoted();
    SHOW(shutdown(pair.client, 7));
    /* Which changes nothing. */
    say("by the kernel: %d", eager() && ping(pair) >= PING);
    SHOW(send(pair.client, "before", 6, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(send(pair.client, "after", 5, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    show_poll("half closed", pair.server, POLLIN | POLLRDHUP, -1);
    SHOW(recv(pair.server, bytes, 16, 0));
    show_bytes("recv", bytes, 6);
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(recv(pair.server, bytes, 16, MSG_DONTWAIT));
    /* The other direction goes on. */
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.server, "answer", 6, 0));
        SHOW(recv(pair.client, bytes, 16, 0));
    }
    show_poll("server", pair.server, POLLIN | POLLOUT | POLLRDHUP, 0);
    show_poll("client", pair.client, POLLIN | POLLOUT | POLLRDHUP, 0);
    SHOW(send(pair.server, "last", 4, 0));
    SHOW(shutdown(pair.server, SHUT_WR));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(recv(pair.client, bytes, 16, 0));
    show_poll("client", pair.client, POLLIN | POLLOUT | POLLRDHUP, -1);
    SHOW(close(pair.client));
    SHOW(close(pair.server));

    pair = promoted();
    SHOW(shutdown(pair.server, SHUT_RD));
    SHOW(recv(pair.server, bytes, 16, 0));
    show_poll("reading shut down", pair.server, POLLIN | POLLRDHUP, 0);
    SHOW(send(pair.client, "unasked", 7, 0));
    wait_for(pair.server, 7);
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(send(pair.server, "still", 5, 0));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(close(pair.client));
    SHOW(close(pair.server));

    pair = promoted();
    SHOW(send(pair.client, "bytes", 5, 0));
    wait_for(pair.server, 5);
    SHOW(shutdown(pair.server, SHUT_RD));
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(close(pair.client));
    SHOW(close(pair.server));

    pair = promoted();
    SHOW(send(pair.client, "both", 4, 0));
    SHOW(shutdown(pair.client, SHUT_RDWR));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(shutdown(pair.server, SHUT_RDWR));
    SHOW(shutdown(pair.server, 7));
    return 0;
}
