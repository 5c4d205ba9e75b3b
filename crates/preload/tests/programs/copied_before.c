/* A socket that two processes have before anything was sent on it, connected by one of them: by pidfd_getfd(3), by pidfd_getfd(2),
 * in a message. Each of the two reads and writes in turn: what one takes the other does not miss. The one that connected it uses
 * it often at first, so that its connection would be worth promoting, or waits in it while it is copied.
 * path: tcp
 * also: auto */
#include "transcript.h"
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>

enum { TURNS = 8, ALONE = 40 };
/* Where its first holder is while it is copied. */
enum where { ELSEWHERE, IN_READ, IN_POLL, IN_EPOLL };

/* Echoes as many bytes as each order says, until the end. */
static void echoes(int socket, int orders)
{
    char count, bytes[TURNS];
    while (read(orders, &count, 1) == 1) {
        take_all(socket, bytes, count);
        send_all(socket, bytes, count);
    }
    _exit(0);
}

/* Waits for the first byte. True: it is still there. */
static bool waits(int socket, enum where where)
{
    char byte;
    struct pollfd of = {.fd = socket, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    switch (where) {
    case ELSEWHERE:
        return false;
    case IN_READ:
        take_all(socket, &byte, 1);
        send_all(socket, &byte, 1);
        return false;
    case IN_POLL:
        NEED(poll(&of, 1, -1));
        return true;
    case IN_EPOLL: {
        int set = NEED(epoll_create1(0));
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, socket, &event));
        NEED(epoll_wait(set, &event, 1, -1));
        close(set);
        return true;
    }
    }
    return false;
}

static bool is_echo_of(int peer, const char *sent, int count)
{
    char got[TURNS] = {0};
    take_all(peer, got, count);
    return !memcmp(sent, got, count);
}

static void try(const char *how, int (*copy)(pid_t, int), bool is_connected, enum where where)
{
    struct sockaddr_in at;
    int listener = listening(&at), channel[2], orders[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, orders));
    pid_t child = NEED(fork());
    if (child == 0) {
        close(orders[1]);
        int mine = NEED(socket(AF_INET, SOCK_STREAM, 0));
        if (is_connected)
            NEED(connect(mine, (struct sockaddr *)&at, sizeof at));
        send_all(channel[1], &mine, sizeof mine);
        if (!copy)
            give_fd(channel[1], mine);
        char is_there = waits(mine, where);
        if (where != ELSEWHERE)
            send_all(orders[0], &is_there, 1);
        echoes(mine, orders[0]);
    }
    int theirs;
    take_all(channel[0], &theirs, sizeof theirs);
    wait_until(child, 'S');
    int socket = copy ? NEED(copy(child, theirs)) : take_fd(channel[0]);
    if (!is_connected)
        NEED(connect(socket, (struct sockaddr *)&at, sizeof at));
    int peer = NEED(accept(listener, NULL, NULL)), good = 0;
    if (where != ELSEWHERE) {
        char is_there, byte;
        send_all(peer, "w", 1);
        take_all(orders[1], &is_there, 1);
        if (is_there)
            take_all(socket, &byte, 1), send_all(socket, &byte, 1);
        good += is_echo_of(peer, "w", 1);
        for (char turn = 1, round = 0; round < ALONE; round++) {
            send_all(peer, "1", 1), send_all(orders[1], &turn, 1);
            good += is_echo_of(peer, "1", 1);
        }
    }
    for (char turn = 1; turn <= TURNS; turn++) {
        char sent[TURNS], got[TURNS];
        memset(sent, turn, sizeof sent);
        /* This process, and then the one that made it. */
        for (int rounds = 0; rounds < 20; rounds++) {
            send_all(peer, sent, turn), take_all(socket, got, turn), send_all(socket, got, turn);
            good += is_echo_of(peer, sent, turn);
        }
        send_all(peer, sent, turn);
        send_all(orders[1], &turn, 1);
        good += is_echo_of(peer, sent, turn);
    }
    say("%s: %d right", how, good);
    close(orders[1]);
    close(socket);
    close(peer);
    close(listener);
    status_of(child);
}

static int by_number(pid_t process, int fd)
{
    int of = NEED(syscall(SYS_pidfd_open, process, 0)), copy = syscall(SYS_pidfd_getfd, of, fd, 0);
    close(of);
    return copy;
}

static int by_function(pid_t process, int fd)
{
    int (*getfd)(int, int, unsigned) = (int (*)(int, int, unsigned))dlsym(RTLD_DEFAULT, "pidfd_getfd");
    if (!getfd)
        return by_number(process, fd);
    int of = NEED(syscall(SYS_pidfd_open, process, 0)), copy = getfd(of, fd, 0);
    close(of);
    return copy;
}

int main(void)
{
    try("pidfd_getfd(3), then connect", by_function, false, ELSEWHERE);
    try("pidfd_getfd(2), then connect", by_number, false, ELSEWHERE);
    try("SCM_RIGHTS, then connect", NULL, false, ELSEWHERE);
    try("connect, then SCM_RIGHTS", NULL, true, ELSEWHERE);
    try("connect, then pidfd_getfd(3)", by_function, true, ELSEWHERE);
    try("connect, then pidfd_getfd(2)", by_number, true, ELSEWHERE);
    try("connect, read, then pidfd_getfd(2)", by_number, true, IN_READ);
    try("connect, poll, then pidfd_getfd(2)", by_number, true, IN_POLL);
    try("connect, epoll_wait, then pidfd_getfd(2)", by_number, true, IN_EPOLL);
    return 0;
}
