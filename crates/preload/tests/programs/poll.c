/* poll(2) and ppoll(2): events, masks, timeouts. */
#include "transcript.h"

static struct pair pair;
static volatile sig_atomic_t came;

static void noted(int signal)
{
    (void)signal;
    came++;
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
    const short all = POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM | POLLRDHUP;
    show_poll("nothing to read", pair.server, POLLIN, 0);
    long began = milliseconds();
    show_poll("nothing to read", pair.server, POLLIN, 40);
    say("it waited: %d", milliseconds() - began >= 39);
    show_poll("everything", pair.server, all, 0);
    SHOW(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    show_poll("everything", pair.server, all, 0);
    show_poll("reading", pair.server, POLLIN, -1);
    show_poll("normal bytes", pair.server, POLLRDNORM, -1);
    show_poll("urgent bytes", pair.server, POLLPRI, 20);
    show_poll("nothing", pair.server, 0, 0);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    show_poll("taken", pair.server, POLLIN, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, sender, NULL);
    show_poll("woken", pair.server, POLLIN, -1);
    pthread_join(thread, NULL);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));

    struct pollfd three[4] = {{pair.client, POLLIN | POLLOUT, 7}, {-1, POLLIN, 7}, {pair.server, POLLIN, 7}, {999, POLLIN, 7}};
    SHOW(poll(three, 3, -1));
    for (int at = 0; at < 3; at++)
        say("  %d: %s", at, events_text(three[at].revents));
    SHOW(poll(three, 4, -1));
    for (int at = 0; at < 4; at++)
        say("  %d: %s", at, events_text(three[at].revents));

    /* The mask lets a signal in that was held back. */
    struct sigaction action = {.sa_handler = noted};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t held, none;
    sigemptyset(&none);
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &held, NULL);
    raise(SIGUSR1);
    struct timespec limit = {0, 40000000};
    struct pollfd one = {pair.server, POLLIN, 0};
    SHOW(ppoll(&one, 1, &limit, NULL));
    say("signals: %d", came);
    SHOW(ppoll(&one, 1, NULL, &none));
    say("signals: %d", came);
    raise(SIGUSR1);
    SHOW(send(pair.client, "x", 1, 0));
    wait_for(pair.server, 1);
    /* What is ready is told before a signal is let in. */
    SHOW(ppoll(&one, 1, &limit, &held));
    say("%s, signals: %d", events_text(one.revents), came);
    limit.tv_nsec = 1000000000;
    SHOW(ppoll(&one, 1, &limit, NULL));
    SHOW(recv(pair.server, bytes, 1, 0));
    SHOW(close(pair.client));
    show_poll("closed", pair.server, all, -1);
    SHOW(close(pair.server));
    show_poll("none", pair.server, all, 0);
    SHOW(poll(NULL, 1, 0));
    SHOW(poll(NULL, 0, 10));
    return 0;
}
