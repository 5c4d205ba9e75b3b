/* Who closes with unread bytes resets; SO_LINGER with no time does too; what the other end
 * hears of it, once. */
#include "transcript.h"

static char bytes[64];

static void error_of(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;
    SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    say("SO_ERROR: %s", error ? strerrorname_np(error) : "0");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    say("# unread bytes");
    struct pair pair = promoted();
    SHOW(send(pair.client, "unread", 6, 0));
    wait_for(pair.server, 6);
    SHOW(close(pair.server));
    show_poll("reset", pair.client, POLLIN | POLLOUT | POLLRDHUP, -1);
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(send(pair.client, "x", 1, 0));
    error_of(pair.client);
    SHOW(close(pair.client));

    say("# bytes that were sent before the reset");
    pair = promoted();
    SHOW(send(pair.server, "answer", 6, 0));
    SHOW(send(pair.client, "unread", 6, 0));
    wait_for(pair.server, 6);
    SHOW(close(pair.server));
    show_poll("reset", pair.client, POLLIN | POLLOUT | POLLRDHUP, -1);
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(close(pair.client));

    say("# SO_ERROR");
    pair = promoted();
    SHOW(send(pair.client, "unread", 6, 0));
    wait_for(pair.server, 6);
    SHOW(close(pair.server));
    show_poll("reset", pair.client, POLLIN, -1);
    error_of(pair.client);
    error_of(pair.client);
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(close(pair.client));

    say("# SO_LINGER");
    pair = promoted();
    struct linger linger = {1, 0};
    SHOW(setsockopt(pair.server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    SHOW(close(pair.server));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(close(pair.client));

    say("# SO_LINGER with time");
    pair = promoted();
    linger.l_linger = 5;
    SHOW(setsockopt(pair.server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    SHOW(send(pair.server, "lingering", 9, 0));
    SHOW(close(pair.server));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(close(pair.client));

    say("# all was read: an end, not a reset");
    pair = promoted();
    SHOW(send(pair.client, "read", 4, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(close(pair.server));
    show_poll("closed", pair.client, POLLIN | POLLRDHUP, -1);
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    error_of(pair.client);
    SHOW(close(pair.client));
    return 0;
}
