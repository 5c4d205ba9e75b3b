/* Which waiters each arrival wakes, with earlier bytes unread: sets in sets, a program that waits for a set, signals of
 * O_ASYNC. And a thread with descriptors of its own, whose closes are no others'. */
#include "transcript.h"
#include <sched.h>

enum { ROUNDS = 4 };
static char bytes[64];

static unsigned of(int is_edge)
{
    return EPOLLIN | (is_edge ? EPOLLET : 0);
}

/* `depth` sets, each in the next; the last one is asked after each arrival. */
static void nested(int depth, int first, int others, int reads, int asks, int late)
{
    struct pair pair = late ? connected() : promoted();
    int sets[3];
    struct epoll_event event;
    char line[256];
    for (int at = 0; at < depth; at++)
        sets[at] = NEED(epoll_create1(0));
    NEED(add(sets[0], pair.server, of(first), 1));
    for (int at = 1; at < depth; at++)
        NEED(add(sets[at], sets[at - 1], of(others), 1));
    if (late)
        warm(pair);
    int outer = sets[depth - 1];
    while (epoll_wait(outer, &event, 1, 0) > 0 && others)
        ;
    int length = snprintf(line, sizeof line, "%d sets, %s in %s, %s, %s%s:", depth, first ? "edges" : "level",
                          others ? "edges" : "level", reads ? "some is read" : "nothing is read", asks ? "asks" : "does not ask",
                          late ? ", promoted late" : "");
    for (int round = 0; round < ROUNDS; round++) {
        send_all(pair.client, "arrival", 7);
        int count = NEED(epoll_wait(outer, &event, 1, 60));
        int inner = asks ? NEED(epoll_wait(sets[0], &event, 1, 60)) : 0;
        long read = reads ? recv(pair.server, bytes, 3, MSG_DONTWAIT) : 0;
        length += snprintf(line + length, sizeof line - length, " %d %d %ld", count, inner, read);
    }
    say("%s", line);
    for (int at = 0; at < depth; at++)
        close(sets[at]);
    close(pair.client);
    close(pair.server);
}

/* poll(2) of a set. */
static void polled(int is_edge, int reads)
{
    struct pair pair = promoted();
    struct epoll_event event;
    char line[256];
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, of(is_edge), 1));
    int length = snprintf(line, sizeof line, "polled, %s, %s:", is_edge ? "edges" : "level", reads ? "some is read" : "nothing is read");
    for (int round = 0; round < ROUNDS; round++) {
        send_all(pair.client, "arrival", 7);
        struct pollfd one = {set, POLLIN, 0};
        int count = NEED(poll(&one, 1, 60)), inner = NEED(epoll_wait(set, &event, 1, 60));
        long read = reads ? recv(pair.server, bytes, 3, MSG_DONTWAIT) : 0;
        length += snprintf(line + length, sizeof line - length, " %d %d %ld", count, inner, read);
    }
    say("%s", line);
    close(set);
    close(pair.client);
    close(pair.server);
}

static void with_signals(int how)
{
    struct pair pair = how == 2 ? connected() : promoted();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGIO);
    int on = 1;
    NEED(fcntl(pair.server, F_SETOWN, getpid()));
    if (how == 1)
        NEED(ioctl(pair.server, FIOASYNC, &on));
    else
        NEED(fcntl(pair.server, F_SETFL, NEED(fcntl(pair.server, F_GETFL)) | O_ASYNC));
    if (how == 2)
        for (int round = 0; round < 50; round++)
            ping(pair);
    struct timespec soon = {0, 100000000}, now = {0, 0};
    while (sigtimedwait(&set, NULL, &now) > 0)
        ;
    int count = 0;
    for (int round = 0; round < ROUNDS; round++) {
        send_all(pair.client, "arrival", 7);
        count += sigtimedwait(&set, NULL, &soon) == SIGIO;
        if (round % 2)
            SHOW(recv(pair.server, bytes, 9, 0));
    }
    say("signals by way %d: %d", how, count);
    close(pair.client);
    close(pair.server);
}

static struct pair parted;
static int how_parted;

static void *parts(void *unused)
{
    if (how_parted == 0)
        SHOW(unshare(CLONE_FILES));
    if (how_parted == 1)
        SHOW(syscall(SYS_unshare, CLONE_FILES));
    if (how_parted == 2)
        SHOW(close_range(parted.client, parted.client, 1U << 1));
    else
        SHOW(close(parted.client));
    if (how_parted == 0)
        SHOW(dup2(STDOUT_FILENO, parted.server));
    return unused;
}

static void apart(int how)
{
    parted = promoted();
    how_parted = how;
    SHOW(send(parted.client, "before", 6, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, parts, NULL);
    pthread_join(thread, NULL);
    for (int round = 0; round < 3; round++) {
        SHOW(send(parted.client, "sent", 4, 0));
        SHOW(recv(parted.server, bytes, round ? 4 : 10, MSG_WAITALL));
        SHOW(send(parted.server, "and back", 8, 0));
        SHOW(recv(parted.client, bytes, 8, MSG_WAITALL));
    }
    SHOW(close(parted.client));
    SHOW(recv(parted.server, bytes, 8, 0));
    SHOW(close(parted.server));
}

int main(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGIO);
    NEED(sigprocmask(SIG_BLOCK, &set, NULL));
    for (int kind = 0; kind < 64; kind++)
        nested(2 + kind / 32, kind & 1, kind >> 1 & 1, kind >> 2 & 1, kind >> 3 & 1, kind >> 4 & 1);
    for (int kind = 0; kind < 4; kind++)
        polled(kind & 1, kind >> 1);
    for (int how = 0; how < 3; how++)
        with_signals(how);
    for (int how = 0; how < 3; how++) {
        pid_t child = fork();
        if (child == 0) {
            apart(how);
            exit(0);
        }
        status_of(child);
    }
    return 0;
}
