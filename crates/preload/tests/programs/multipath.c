/* Listeners of MPTCP, which `mptcpize` makes of TCP's: a peer that speaks TCP has a connection of TCP, which is promoted. */
#include "transcript.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static int listener(struct sockaddr_in *at, int protocol)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, protocol);
    if (fd < 0 && (errno == EPROTONOSUPPORT || errno == ENOPROTOOPT)) {
        say("this kernel has no MPTCP");
        fd = NEED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    }
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    NEED(bind(fd, (struct sockaddr *)at, length));
    NEED(listen(fd, 8));
    NEED(getsockname(fd, (struct sockaddr *)at, &length));
    return fd;
}

static int protocol_of(int fd)
{
    int protocol = 0;
    socklen_t length = sizeof protocol;
    NEED(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length));
    return protocol;
}

enum { ACCEPT, ACCEPT4, DUPLICATED, FORKED, SENT, SYSCALL, WAYS };
static const char *const ways[] = {"accept", "accept4", "a duplicate", "a forked one", "one that was sent", "syscall"};

/* The listener as the program has it then. */
static int brought_to(int way, int fd)
{
    int channel[2], copy = fd;
    if (way == DUPLICATED)
        copy = NEED(dup(fd));
    if (way == SENT) {
        NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        give_fd(channel[0], fd);
        copy = take_fd(channel[1]);
        close(channel[0]);
        close(channel[1]);
    }
    if (copy != fd)
        close(fd);
    return copy;
}

static void walk(int way, int of_client, int of_listener)
{
    say("%s, %d and %d", ways[way], of_client, of_listener);
    struct sockaddr_in at;
    int fd = brought_to(way, listener(&at, of_listener)), on = 1;
    int client = socket(AF_INET, SOCK_STREAM, of_client);
    if (client < 0)
        client = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(client, (struct sockaddr *)&at, sizeof at));
    pid_t child = way == FORKED ? NEED(fork()) : 0;
    if (way == FORKED && child > 0) {
        status_of(child);
        close(client);
        close(fd);
        return;
    }
    struct pair pair = {client, way == ACCEPT4   ? accept4(fd, NULL, NULL, SOCK_CLOEXEC)
                                : way == SYSCALL ? (int)syscall(SYS_accept, fd, NULL, NULL)
                                                 : accept(fd, NULL, NULL)};
    NEED(pair.server);
    say("protocols %d and %d", protocol_of(pair.client), protocol_of(pair.server));
    NEED(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    /* A child has its parent's client, which may send, too. */
    if (of_client == IPPROTO_TCP && way != FORKED)
        warm(pair);
    say("right: %d", way == FORKED ? 1 : (NEED(send(pair.client, "x", 1, 0)), NEED(recv(pair.server, &(char){0}, 1, 0)) == 1));
    used(pair);
    if (way == FORKED)
        _exit(0);
    close(fd);
    close(pair.client);
    close(pair.server);
}

int main(void)
{
    static const int protocols[] = {IPPROTO_TCP, IPPROTO_MPTCP};
    for (int way = 0; way < WAYS; way++)
        for (int client = 0; client < 2; client++)
            for (int server = 0; server < 2; server++)
                walk(way, protocols[client], protocols[server]);
    return 0;
}
