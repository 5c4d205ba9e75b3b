/* getsockopt(2) and setsockopt(2), and what else a program asks about a socket. */
#include "transcript.h"

static struct pair pair;

static void ask(int level, int option, const char *name)
{
    int value = -1;
    socklen_t length = sizeof value;
    errno = UNTOUCHED;
    int status = getsockopt(pair.client, level, option, &value, &length);
    say("%s = %d: %d, length %u%s", name, status, value, length, errno == UNTOUCHED ? "" : " errno");
}

#define ASK(level, option) ask(level, option, #option)

static void set(int level, int option, int value, const char *name)
{
    errno = UNTOUCHED;
    int status = setsockopt(pair.client, level, option, &value, sizeof value);
    say("%s set to %d = %d", name, value, status);
    ask(level, option, name);
}

#define SET(level, option, value) set(level, option, value, #option)

int main(void)
{
    pair = connected();
    int off = 0;
    NEED(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off));
    warm(pair);
    ASK(SOL_SOCKET, SO_TYPE);
    ASK(SOL_SOCKET, SO_ERROR);
    ASK(SOL_SOCKET, SO_DOMAIN);
    ASK(SOL_SOCKET, SO_PROTOCOL);
    ASK(SOL_SOCKET, SO_ACCEPTCONN);
    /* What the program set is what it is told, whatever lies beneath. */
    ASK(IPPROTO_TCP, TCP_NODELAY);
    SET(IPPROTO_TCP, TCP_NODELAY, 1);
    SET(IPPROTO_TCP, TCP_NODELAY, 5);
    SET(IPPROTO_TCP, TCP_NODELAY, 0);
    char small[2] = {9, 9};
    socklen_t length = 1;
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, small, &length));
    say("length %u, bytes %d %d", length, small[0], small[1]);
    length = 0;
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, small, &length));
    length = -1;
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, small, &length));
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, small, NULL));
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, small, 1));
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
    SET(SOL_SOCKET, SO_KEEPALIVE, 1);
    SET(SOL_SOCKET, SO_REUSEADDR, 1);
    SET(SOL_SOCKET, SO_PRIORITY, 3);
    SET(IPPROTO_TCP, TCP_KEEPIDLE, 77);
    SET(IPPROTO_TCP, TCP_CORK, 1);
    SHOW(send(pair.client, "corked", 6, 0));
    SET(IPPROTO_TCP, TCP_CORK, 0);
    char bytes[16];
    SHOW(recv(pair.server, bytes, 6, MSG_WAITALL));
    SET(IPPROTO_TCP, TCP_QUICKACK, 1);
    SET(SOL_SOCKET, 9999, 1);
    ASK(9999, 1);
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "ping", 4, 0));
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(send(pair.server, "pong", 4, 0));
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    }

    /* Names. */
    struct sockaddr_in a, b;
    length = sizeof a;
    SHOW(getsockname(pair.client, (struct sockaddr *)&a, &length));
    say("length %u", length);
    length = sizeof b;
    SHOW(getpeername(pair.server, (struct sockaddr *)&b, &length));
    say("the same: %d", a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr);
    struct stat status;
    SHOW(fstat(pair.client, &status));
    say("a socket: %d", S_ISSOCK(status.st_mode));
    SHOW(fcntl(pair.client, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
    SHOW(isatty(pair.client));
    SHOW(fsync(pair.client));
    SHOW(ftruncate(pair.client, 0));
    SHOW(listen(pair.client, 1));
    SHOW(connect(pair.client, (struct sockaddr *)&a, sizeof a));
    SHOW(accept(pair.client, NULL, NULL));
    SHOW(bind(pair.client, (struct sockaddr *)&a, sizeof a));
    return 0;
}
