/* TCP_INQ: each recvmsg(2) says how much is left to read, in every state of the connection and for every room.
 * spins: 200 */
#include "transcript.h"

enum { ROOMS = 8 };
static const size_t rooms[ROOMS] = {0, 8, 15, 16, 18, 20, 24, 64};

static const char *state;

/* One recvmsg(2), and what it says beside the bytes. */
static ssize_t receive(int fd, size_t length, int flags, size_t room)
{
    static char bytes[1 << 18];
    char control[64];
    memset(control, 9, sizeof control);
    struct iovec piece = {bytes, length};
    struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    ssize_t count = recvmsg(fd, &head, flags);
    say("%s: recvmsg of %zu, flags %x, room %zu = %zd %s, flags %x, length %zu", state, length, flags, room, count,
        count < 0 ? strerrorname_np(errno) : "", head.msg_flags, head.msg_controllen);
    if (count >= 0 && room >= sizeof(struct cmsghdr)) {
        struct cmsghdr *one = (struct cmsghdr *)control;
        say("  beside: %d %d, length %zu", one->cmsg_level, one->cmsg_type, one->cmsg_len);
        show_bytes("  of them", CMSG_DATA(one), 8);
    }
    return count;
}

static void partly(struct pair pair, int flags)
{
    send_all(pair.client, "twenty bytes of text", 20);
    wait_for(pair.server, 20);
    for (int room = 0; room < ROOMS; room++)
        receive(pair.server, 2, flags, rooms[room]);
    receive(pair.server, 64, flags & ~MSG_PEEK, 64);
    receive(pair.server, 64, MSG_DONTWAIT, 64);
}

/* Room that is said to be nowhere. */
static void nowhere(struct pair pair)
{
    char bytes[8];
    send_all(pair.client, "text", 4);
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = NULL, .msg_controllen = 64};
    ssize_t count = recvmsg(pair.server, &head, 0);
    say("%s: recvmsg = %zd, flags %x, length %zu", state, count, head.msg_flags, head.msg_controllen);
}

/* More than a ring holds, with the same bytes left behind each read. */
static void streamed(struct pair pair)
{
    static char bytes[900000];
    nonblocking(pair.client);
    ssize_t sent = 0;
    for (ssize_t count = 0; count >= 0; sent += count > 0 ? count : 0)
        count = send(pair.client, bytes, sizeof bytes, MSG_DONTWAIT);
    bool right = true;
    ssize_t received = 0;
    while (received < sent) {
        char control[64];
        struct iovec piece = {bytes, 10000};
        struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t count = NEED(recvmsg(pair.server, &head, 0));
        struct cmsghdr *one = CMSG_FIRSTHDR(&head);
        int left = one ? *(int *)CMSG_DATA(one) : -1, unread = 0;
        received += count;
        NEED(ioctl(pair.server, FIONREAD, &unread));
        /* More may come in between, and never less. */
        right &= left >= 0 && left <= unread && left <= sent - received && (left > 0 || count < 10000 || received == sent);
    }
    say("%s: a stream is counted: %d", state, right);
}

static void walk(struct pair pair)
{
    partly(pair, 0);
    partly(pair, MSG_PEEK);
    partly(pair, MSG_WAITALL | MSG_DONTWAIT);
    partly(pair, MSG_TRUNC);
    nowhere(pair);
    /* Calls without messages say nothing. */
    char bytes[16];
    send_all(pair.client, "plain", 5);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    struct iovec piece = {bytes, 3};
    struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}}};
    send_all(pair.client, "several", 7);
    wait_for(pair.server, 7);
    int count = recvmmsg(pair.server, many, 2, 0, NULL);
    say("%s: recvmmsg = %d, flags %x %x", state, count, many[0].msg_hdr.msg_flags, many[1].msg_hdr.msg_flags);
    receive(pair.server, 16, MSG_DONTWAIT, 64);
}

/* The peer, which has the connection for itself or was forked with it, is killed behind its last bytes. The reader waits for the
 * next edge once it was told that nothing is left, as gRPC does. */
static void killed(int messages, bool shared)
{
    struct sockaddr_in at;
    int on = 1, set = NEED(epoll_create1(0)), listener = listening(&at);
    struct pair pair = shared ? connected() : (struct pair){-1, -1};
    char bytes[64] = {0}, control[64];
    pid_t peer = NEED(fork());
    if (!peer) {
        int fd = shared ? pair.client : NEED(socket(AF_INET, SOCK_STREAM, 0));
        if (shared)
            close(pair.server);
        else
            NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
        for (int message = 0; message < messages; message++) {
            send_all(fd, bytes, 16);
            take_all(fd, bytes, 16);
        }
        send_all(fd, "last", 4);
        kill(getpid(), SIGKILL);
    }
    if (shared)
        close(pair.client);
    else
        pair.server = NEED(accept(listener, NULL, NULL));
    close(listener);
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    nonblocking(pair.server);
    NEED(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    int received = 0;
    ssize_t count = 1;
    struct epoll_event event;
    while (count != 0 && NEED(epoll_wait(set, &event, 1, 5000)) == 1)
        for (int left = 1; left > 0 && count != 0;) {
            struct iovec piece = {bytes, sizeof bytes};
            struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            count = recvmsg(pair.server, &head, 0);
            if (count < 0 && errno == EAGAIN)
                break;
            if (count < 0)
                count = 0;
            received += count;
            struct cmsghdr *one = count > 0 ? CMSG_FIRSTHDR(&head) : NULL;
            left = one ? *(int *)CMSG_DATA(one) : 0;
            if (count == 16)
                send_all(pair.server, bytes, 16);
        }
    say("%d messages, then killed: %d bytes, and the end: %d", messages, received, count == 0);
    NEED(waitpid(peer, NULL, 0));
    close(pair.server);
    close(set);
}

int main(void)
{
    int on = 1, off = 0;
    state = "early";
    struct pair pair = connected();
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    walk(pair);
    warm(pair);
    state = "promoted";
    walk(pair);
    streamed(pair);
    SHOW(setsockopt(pair.server, IPPROTO_TCP, TCP_INQ, &off, sizeof off));
    state = "off";
    partly(pair, 0);
    state = "late";
    pair = promoted();
    SHOW(setsockopt(pair.server, IPPROTO_TCP, TCP_INQ, &(int){2}, sizeof(int)));
    partly(pair, 0);
    SHOW(setsockopt(pair.server, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    walk(pair);
    /* The end counts as one. */
    send_all(pair.client, "last", 4);
    NEED(shutdown(pair.client, SHUT_WR));
    wait_for(pair.server, 4);
    state = "ended";
    receive(pair.server, 2, 0, 64);
    receive(pair.server, 2, 0, 64);
    receive(pair.server, 2, 0, 64);
    state = "reset";
    pair = promoted();
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    send_all(pair.server, "unread", 6);
    send_all(pair.client, "last", 4);
    wait_for(pair.server, 4);
    close(pair.client);
    /* The reset comes soon: nothing else is waited for. */
    NEED(poll(&(struct pollfd){.fd = pair.server}, 1, 5000) - 1);
    receive(pair.server, 2, 0, 64);
    receive(pair.server, 2, 0, 64);
    receive(pair.server, 2, 0, 64);
    for (int round = 0; round < 40; round++)
        killed(round % 4 < 2 ? 300 : 0, round % 2);
    return 0;
}
