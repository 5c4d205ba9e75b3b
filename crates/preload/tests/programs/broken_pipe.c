/* EPIPE and SIGPIPE. */
#include "transcript.h"

static volatile sig_atomic_t pipes;

static void broken(int signal)
{
    (void)signal;
    pipes++;
}

int main(void)
{
    struct sigaction action = {.sa_handler = broken};
    sigaction(SIGPIPE, &action, NULL);
    char bytes[8];
    struct pair pair = promoted();
    SHOW(close(pair.server));
    /* The first is answered by a reset. */
    show_poll("closed", pair.client, POLLIN, -1);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    show_poll("reset", pair.client, POLLOUT, -1);
    pause_ms(20);
    SHOW(send(pair.client, "x", 1, 0));
    say("signals: %d", pipes);
    SHOW(send(pair.client, "x", 1, 0));
    say("signals: %d", pipes);
    SHOW(write(pair.client, "x", 1));
    say("signals: %d", pipes);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    say("signals: %d", pipes);
    struct iovec one = {"x", 1};
    SHOW(writev(pair.client, &one, 1));
    say("signals: %d", pipes);
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    SHOW(close(pair.client));

    pair = promoted();
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(send(pair.client, "x", 1, 0));
    say("signals: %d", pipes);
    SHOW(send(pair.client, "x", 1, MSG_NOSIGNAL));
    say("signals: %d", pipes);
    SHOW(send(pair.server, "y", 1, 0));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    return 0;
}
