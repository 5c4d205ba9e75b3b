/* Every wait goes on as before once the process may have fewer descriptors than it waits for: poll(2) alone refuses more of them
 * than that (its EINVAL), whether anything is ready or not. */
#include "transcript.h"
#include <sys/resource.h>

enum { OTHERS = 5, WAITS = 12 };
static const char *const waits[WAITS] = {"poll of one", "poll of all", "ppoll of all", "select", "pselect", "epoll_wait", "epoll_pwait",
                                         "recv", "recv in time", "recv of more", "recv of all", "peek of all"};

static struct pair pair;
static int others[OTHERS], set;
static char bytes[64];

static void *sender(void *unused)
{
    (void)unused;
    pause_ms(20);
    send_all(pair.client, "late", 4);
    pause_ms(20);
    send_all(pair.client, "more", 4);
    return NULL;
}

static long wait_by(int how, int timeout)
{
    struct pollfd all[1 + OTHERS] = {{pair.server, POLLIN, 0}};
    struct timeval time = {timeout / 1000, timeout % 1000 * 1000}, *in_time = timeout < 0 ? NULL : &time;
    struct timespec exact = {timeout / 1000, timeout % 1000 * 1000000}, *exactly = timeout < 0 ? NULL : &exact;
    struct epoll_event event;
    int most = pair.server;
    fd_set ready;
    FD_ZERO(&ready);
    FD_SET(pair.server, &ready);
    for (int at = 0; at < OTHERS; at++) {
        all[1 + at] = (struct pollfd){others[at], POLLIN, 0};
        FD_SET(others[at], &ready);
        most = others[at] > most ? others[at] : most;
    }
    int flags = timeout == 0 ? MSG_DONTWAIT : 0;
    switch (how) {
    case 0:
        return poll(all, 1, timeout);
    case 1:
        return poll(all, 1 + OTHERS, timeout);
    case 2:
        return ppoll(all, 1 + OTHERS, exactly, NULL);
    case 3:
        return select(most + 1, &ready, NULL, NULL, in_time);
    case 4:
        return pselect(most + 1, &ready, NULL, NULL, exactly, NULL);
    case 5:
        return epoll_wait(set, &event, 1, timeout);
    case 6:
        return epoll_pwait(set, &event, 1, timeout, NULL);
    case 7:
        return recv(pair.server, bytes, 4, flags);
    case 9:
        return recv(pair.server, bytes, 8, flags);
    case 11:
        return recv(pair.server, bytes, 8, flags | MSG_PEEK | MSG_WAITALL);
    default:
        return recv(pair.server, bytes, 8, flags | MSG_WAITALL);
    }
}

static void limited(int how, rlim_t limit)
{
    struct timeval wait = {5, 0}, none = {0, 0};
    int more = 8, one = 1;
    if (how == 8)
        NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait));
    if (how == 9)
        NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &more, sizeof more));
    struct rlimit before, now;
    NEED(getrlimit(RLIMIT_NOFILE, &before));
    now = (struct rlimit){limit, before.rlim_max};
    NEED(setrlimit(RLIMIT_NOFILE, &now));
    char line[256];
    int length = snprintf(line, sizeof line, "%s, at most %d:", waits[how], (int)limit);
    for (int round = 0; round < 3; round++) {
        /* Nothing is there; it comes while this waits; it is there. */
        pthread_t thread;
        if (round == 1)
            pthread_create(&thread, NULL, sender, NULL);
        errno = 0;
        long result = wait_by(how, round == 0 ? 0 : round == 1 ? -1 : 1000);
        length += snprintf(line + length, sizeof line - length, " %ld%s%s", result, result < 0 ? " " : "",
                           result < 0 ? strerrorname_np(errno) : "");
        if (round == 1)
            pthread_join(thread, NULL);
        if (round == 1) {
            while (recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
                ;
            send_all(pair.client, "evermore", 8);
            wait_for(pair.server, 8);
        }
    }
    NEED(setrlimit(RLIMIT_NOFILE, &before));
    if (how == 8)
        NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    if (how == 9)
        NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
    say("%s", line);
    while (recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

static void *ender(void *unused)
{
    (void)unused;
    pause_ms(20);
    send_all(pair.client, "last", 4);
    pause_ms(20);
    NEED(shutdown(pair.client, SHUT_WR));
    return NULL;
}

/* The end comes before as much as is waited for. */
static void ended(int way)
{
    pair = promoted();
    int more = 8;
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &more, sizeof more));
    struct rlimit before, now;
    NEED(getrlimit(RLIMIT_NOFILE, &before));
    now = (struct rlimit){0, before.rlim_max};
    NEED(setrlimit(RLIMIT_NOFILE, &now));
    pthread_t thread;
    pthread_create(&thread, NULL, ender, NULL);
    fd_set ready;
    FD_ZERO(&ready);
    FD_SET(pair.server, &ready);
    if (way)
        SHOW(select(pair.server + 1, &ready, NULL, NULL, NULL));
    SHOW(recv(pair.server, bytes, 8, 0));
    SHOW(recv(pair.server, bytes, 8, 0));
    pthread_join(thread, NULL);
    NEED(setrlimit(RLIMIT_NOFILE, &before));
}

int main(void)
{
    pair = promoted();
    set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    for (int at = 0; at < OTHERS; at++) {
        int channel[2];
        NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        others[at] = channel[0];
    }
    static const rlim_t limits[] = {1024, 6, 5, 1, 0};
    for (int how = 0; how < WAITS; how++)
        for (size_t at = 0; at < sizeof limits / sizeof limits[0]; at++)
            limited(how, limits[at]);
    for (int way = 0; way < 2; way++)
        ended(way);
    return 0;
}
