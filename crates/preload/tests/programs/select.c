/* select(2) and pselect(2): sets, masks, timeouts. */
#include "transcript.h"

static volatile sig_atomic_t came;

static void noted(int signal)
{
    (void)signal;
    came++;
}

static struct pair pair;
static fd_set in, out, except;

static void ask(bool client_too)
{
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(pair.server, &in);
    FD_SET(pair.server, &except);
    if (client_too) {
        FD_SET(pair.client, &in);
        FD_SET(pair.client, &out);
    }
}

static void tell(void)
{
    say("  server in %d except %d, client in %d out %d", FD_ISSET(pair.server, &in) != 0,
        FD_ISSET(pair.server, &except) != 0, FD_ISSET(pair.client, &in) != 0, FD_ISSET(pair.client, &out) != 0);
}

static void *sender(void *unused)
{
    (void)unused;
    pause_ms(50);
    send_all(pair.client, "late", 4);
    return NULL;
}

int main(void)
{
    pair = promoted();
    char bytes[16];
    int above = (pair.client > pair.server ? pair.client : pair.server) + 1;
    struct timeval limit = {0, 40000};
    ask(false);
    long began = milliseconds();
    SHOW(select(above, &in, &out, &except, &limit));
    say("it waited: %d, left: %ld.%06ld", milliseconds() - began >= 39, (long)limit.tv_sec, (long)limit.tv_usec);
    tell();
    ask(true);
    SHOW(select(above, &in, &out, &except, NULL));
    tell();
    SHOW(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    ask(true);
    limit.tv_sec = 100;
    SHOW(select(above, &in, &out, &except, &limit));
    say("most is left: %d", limit.tv_sec >= 98);
    tell();
    ask(true);
    SHOW(select(pair.server < pair.client ? pair.client : pair.server, &in, NULL, NULL, &(struct timeval){0, 0}));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, sender, NULL);
    ask(false);
    SHOW(select(above, &in, NULL, &except, NULL));
    tell();
    pthread_join(thread, NULL);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));

    struct sigaction action = {.sa_handler = noted};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t held, none;
    sigemptyset(&none);
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &held, NULL);
    raise(SIGUSR1);
    struct timespec time = {0, 40000000};
    ask(false);
    SHOW(pselect(above, &in, NULL, NULL, &time, NULL));
    say("time untouched: %d, signals: %d", time.tv_nsec == 40000000, came);
    ask(false);
    SHOW(pselect(above, &in, NULL, NULL, NULL, &none));
    say("signals: %d", came);
    tell();

    limit = (struct timeval){0, -1};
    ask(false);
    SHOW(select(above, &in, NULL, NULL, &limit));
    SHOW(select(-1, &in, NULL, NULL, NULL));
    int gone = NEED(dup(pair.client));
    NEED(close(gone));
    ask(false);
    FD_SET(gone, &in);
    SHOW(select(gone + 1, &in, NULL, NULL, NULL));
    SHOW(shutdown(pair.client, SHUT_WR));
    ask(true);
    FD_CLR(pair.client, &out);
    SHOW(select(above, &in, &out, &except, NULL));
    tell();
    return 0;
}
