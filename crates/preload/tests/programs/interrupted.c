/* Signals that come while a call waits: EINTR, and SA_RESTART; also while it looks for messages (spins: 1000000). */
#include "transcript.h"

static struct pair pair;
static pthread_t waiter;
static volatile pid_t waiter_id;
static volatile sig_atomic_t came;
static char bytes[1 << 16];

static void noted(int signal)
{
    (void)signal;
    came++;
}

static void *signals(void *unused)
{
    (void)unused;
    until_asleep(&waiter_id);
    pause_ms(50);
    pthread_kill(waiter, SIGUSR1);
    return NULL;
}

static void *signal_then_bytes(void *unused)
{
    signals(unused);
    pause_ms(50);
    send_all(pair.client, "bytes", 5);
    return NULL;
}

static pthread_t begin(void *(*run)(void *))
{
    pthread_t thread;
    came = 0;
    pthread_create(&thread, NULL, run, NULL);
    return thread;
}

static void end(pthread_t thread)
{
    pthread_join(thread, NULL);
    say("signals: %d", came);
}

static void handle(int flags)
{
    struct sigaction action = {.sa_handler = noted, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
}

int main(void)
{
    pair = promoted();
    waiter = pthread_self();
    waiter_id = gettid();
    handle(0);
    pthread_t thread = begin(signals);
    SHOW(recv(pair.server, bytes, 8, 0));
    end(thread);
    thread = begin(signals);
    SHOW(read(pair.server, bytes, 8));
    end(thread);
    thread = begin(signals);
    SHOW(recv(pair.server, bytes, 8, MSG_PEEK));
    end(thread);
    thread = begin(signals);
    show_poll("poll", pair.server, POLLIN, -1);
    end(thread);
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    thread = begin(signals);
    show_epoll("epoll", set, -1);
    end(thread);
    fd_set read_set;
    FD_ZERO(&read_set);
    FD_SET(pair.server, &read_set);
    thread = begin(signals);
    SHOW(select(pair.server + 1, &read_set, NULL, NULL, NULL));
    end(thread);

    handle(SA_RESTART);
    thread = begin(signal_then_bytes);
    SHOW(recv(pair.server, bytes, 8, 0));
    end(thread);
    thread = begin(signal_then_bytes);
    SHOW(recv(pair.server, bytes, 5, MSG_WAITALL));
    end(thread);
    /* Readiness calls are never restarted (signal(7)), nor are sockets with a timeout. */
    thread = begin(signals);
    show_poll("poll", pair.server, POLLIN, 5000);
    end(thread);
    thread = begin(signals);
    show_epoll("epoll", set, 5000);
    end(thread);
    struct timeval limit = {5, 0};
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    thread = begin(signals);
    SHOW(recv(pair.server, bytes, 8, 0));
    end(thread);

    /* A sender that waits for room. */
    handle(0);
    nonblocking(pair.client);
    /* The kernel may make room for some time after it had none. */
    for (int full = 0; full < 5; full++) {
        while (send(pair.client, bytes, sizeof bytes, 0) > 0)
            full = 0;
        pause_ms(20);
    }
    NEED(fcntl(pair.client, F_SETFL, 0));
    thread = begin(signals);
    SHOW(send(pair.client, bytes, sizeof bytes, 0));
    end(thread);
    return 0;
}
