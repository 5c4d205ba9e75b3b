/* A socket that two processes have before anything was sent on it, connected by one of them: by pidfd_getfd(3), by pidfd_getfd(2),
 * in a message. Each of the two reads and writes in turn: what one takes the other does not miss.
 * lane: tcp
 * also: auto */
#include "transcript.h"
#include <dlfcn.h>

enum { TURNS = 8 };

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

static void try(const char *how, int (*copy)(pid_t, int, int), bool is_connected)
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
        give_fd(channel[1], mine);
        echoes(mine, orders[0]);
    }
    int theirs;
    take_all(channel[0], &theirs, sizeof theirs);
    int socket = NEED(copy(child, theirs, channel[0]));
    if (!is_connected)
        NEED(connect(socket, (struct sockaddr *)&at, sizeof at));
    int peer = NEED(accept(listener, NULL, NULL)), good = 0;
    for (char turn = 1; turn <= TURNS; turn++) {
        char sent[TURNS], got[TURNS];
        memset(sent, turn, sizeof sent);
        /* This process, and then the one that made it. */
        for (int rounds = 0; rounds < 20; rounds++)
            send_all(peer, sent, turn), take_all(socket, got, turn), send_all(socket, got, turn), take_all(peer, got, turn);
        good += !memcmp(sent, got, turn);
        memset(got, 0, sizeof got);
        send_all(peer, sent, turn);
        send_all(orders[1], &turn, 1);
        take_all(peer, got, turn);
        good += !memcmp(sent, got, turn);
    }
    say("%s: %d of %d", how, good, 2 * TURNS);
    close(orders[1]);
    close(socket);
    close(peer);
    close(listener);
    status_of(child);
}

static int by_number(pid_t process, int fd, int channel)
{
    int of = NEED(syscall(SYS_pidfd_open, process, 0)), copy = syscall(SYS_pidfd_getfd, of, fd, 0);
    (void)channel;
    close(of);
    return copy;
}

static int by_function(pid_t process, int fd, int channel)
{
    int (*getfd)(int, int, unsigned) = (int (*)(int, int, unsigned))dlsym(RTLD_DEFAULT, "pidfd_getfd");
    if (!getfd)
        return by_number(process, fd, channel);
    int of = NEED(syscall(SYS_pidfd_open, process, 0)), copy = getfd(of, fd, 0);
    close(of);
    return copy;
}

static int by_message(pid_t process, int fd, int channel)
{
    (void)process, (void)fd;
    return take_fd(channel);
}

int main(void)
{
    try("pidfd_getfd(3), then connect", by_function, false);
    try("pidfd_getfd(2), then connect", by_number, false);
    try("SCM_RIGHTS, then connect", by_message, false);
    try("connect, then SCM_RIGHTS", by_message, true);
    /* Eagerly it is in memory at once, and a copy that is taken without its holder's knowledge is of no use. */
    try("connect, then pidfd_getfd(3)", by_function, !eager());
    try("connect, then pidfd_getfd(2)", by_number, !eager());
    return 0;
}
