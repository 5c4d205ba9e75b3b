/* The program's clock stands still, as a library before libc's has it (libfaketime): times of waits still end.
 * also: auto */
#include "transcript.h"

static volatile bool frozen;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!frozen)
        return syscall(SYS_clock_gettime, clock, now);
    *now = (struct timespec){.tv_sec = 1700000000};
    return 0;
}

static long kernels_ms(void)
{
    struct timespec now;
    NEED(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now));
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

enum { LIMIT_MS = 60 };

enum { POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2, RECV, RECV_ALL, RECV_PEEK, RECVMSG, RECVMMSG, READ, SEND, WAITS };
static const char *const waits[] = {"poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2", "recv",
                                    "recv of all", "recv that peeks", "recvmsg", "recvmmsg", "read", "send"};

static long wait_by(int call, struct pair pair, int set)
{
    static char bytes[1 << 16];
    struct timespec limit = {.tv_nsec = LIMIT_MS * 1000000};
    struct timeval left = {.tv_usec = LIMIT_MS * 1000};
    struct pollfd one = {.fd = pair.client, .events = POLLIN};
    struct epoll_event event;
    fd_set read_set;
    FD_ZERO(&read_set);
    FD_SET(pair.client, &read_set);
    struct iovec piece = {bytes, 8};
    struct mmsghdr head = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
    switch (call) {
    case POLL: return poll(&one, 1, LIMIT_MS);
    case PPOLL: return ppoll(&one, 1, &limit, NULL);
    case SELECT: return select(pair.client + 1, &read_set, NULL, NULL, &left);
    case PSELECT: return pselect(pair.client + 1, &read_set, NULL, NULL, &limit, NULL);
    case EPOLL_WAIT: return epoll_wait(set, &event, 1, LIMIT_MS);
    case EPOLL_PWAIT: return epoll_pwait(set, &event, 1, LIMIT_MS, NULL);
    case EPOLL_PWAIT2: return epoll_pwait2(set, &event, 1, &limit, NULL);
    case RECV: return recv(pair.client, bytes, 8, 0);
    case RECV_ALL: return recv(pair.client, bytes, 8, MSG_WAITALL);
    case RECV_PEEK: return recv(pair.client, bytes, 8, MSG_PEEK);
    case RECVMSG: return recvmsg(pair.client, &head.msg_hdr, 0);
    case RECVMMSG: return recvmmsg(pair.client, &head, 1, 0, NULL);
    case READ: return read(pair.client, bytes, 8);
    default:
        /* Until there is no room, which is the call that waits. */
        while (send(pair.client, bytes, sizeof bytes, 0) == sizeof bytes)
            ;
        return 0;
    }
}

static void walk(const char *state, struct pair pair)
{
    struct timeval limit = {.tv_usec = LIMIT_MS * 1000};
    NEED(setsockopt(pair.client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.client, EPOLLIN, 1));
    for (int call = 0; call < WAITS; call++) {
        long began = kernels_ms();
        long result = wait_by(call, pair, set);
        int error = errno;
        say("%s: %s = %ld %s, %s", state, waits[call], result, result < 0 ? strerrorname_np(error) : "",
            kernels_ms() - began < LIMIT_MS - 1 ? "early" : "in time");
    }
    close(set);
}

int main(void)
{
    struct pair plain = connected(), first = promoted(), second = promoted();
    frozen = true;
    walk("promoted", first);
    walk("plain", plain);
    /* Those that begin now, and whose offer is answered or not. */
    walk("new", connected());
    struct sockaddr_in at;
    struct pair pair = {NEED(socket(AF_INET, SOCK_STREAM, 0)), listening(&at)};
    NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
    walk("not accepted", pair);
    /* What comes ends a wait. */
    send_all(second.server, "come", 4);
    show_poll("come", second.client, POLLIN, -1);
    used(second);
    return 0;
}
