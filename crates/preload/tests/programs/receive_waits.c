/* Which receive calls wait, and what the others return: every call with every flag and length, on a
 * blocking socket, in every state of its connection. A call that waits is ended by a signal. */
#include "transcript.h"

static const struct { const char *name; int flags; } flags[] = {
    {"0", 0},
    {"DONTWAIT", MSG_DONTWAIT},
    {"PEEK", MSG_PEEK},
    {"PEEK|DONTWAIT", MSG_PEEK | MSG_DONTWAIT},
    {"WAITALL", MSG_WAITALL},
    {"PEEK|WAITALL", MSG_PEEK | MSG_WAITALL},
    {"TRUNC", MSG_TRUNC},
    {"PEEK|TRUNC", MSG_PEEK | MSG_TRUNC},
    {"OOB", MSG_OOB},
    {"OOB|PEEK", MSG_OOB | MSG_PEEK},
    {"OOB|DONTWAIT", MSG_OOB | MSG_DONTWAIT},
    {"ERRQUEUE", MSG_ERRQUEUE},
    {"ERRQUEUE|PEEK", MSG_ERRQUEUE | MSG_PEEK},
    {"ERRQUEUE|OOB", MSG_ERRQUEUE | MSG_OOB},
    {"CMSG_CLOEXEC", MSG_CMSG_CLOEXEC},
    {"NOSIGNAL", MSG_NOSIGNAL},
    {"CMSG_COMPAT", (int)0x80000000},
    {"WAITFORONE", MSG_WAITFORONE},
};
enum { FLAGS = sizeof flags / sizeof flags[0] };

enum { READ, READV, READV_PARTS, PREADV2, PREADV2_NOWAIT, WITHOUT_FLAGS, RECV = WITHOUT_FLAGS, RECVFROM, RECVMSG, RECVMMSG, CALLS };
static const char *const calls[] = {"read", "readv", "readv of parts", "preadv2", "preadv2 RWF_NOWAIT",
                                    "recv", "recvfrom", "recvmsg", "recvmmsg"};

static char bytes[16];

static ssize_t receive(int call, int fd, size_t length, int flag)
{
    struct iovec one = {bytes, length}, parts[] = {{bytes, 0}, {bytes, length}, {bytes + length, 0}};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1};
    struct mmsghdr many[] = {{.msg_hdr = head}, {.msg_hdr = head}};
    switch (call) {
    case READ: return read(fd, bytes, length);
    case READV: return readv(fd, &one, 1);
    case READV_PARTS: return readv(fd, parts, 3);
    case PREADV2: return preadv2(fd, &one, 1, -1, 0);
    case PREADV2_NOWAIT: return preadv2(fd, &one, 1, -1, RWF_NOWAIT);
    case RECV: return recv(fd, bytes, length, flag);
    case RECVFROM: return recvfrom(fd, bytes, length, flag, NULL, NULL);
    case RECVMSG: return recvmsg(fd, &head, flag);
    default: return recvmmsg(fd, many, 2, flag, NULL);
    }
}

/* Vectors and messages that the kernel refuses. */
enum { NEGATIVE_COUNT, LONG_VECTOR, NO_VECTOR, NEGATIVE_PIECE, EMPTY_VECTOR, LONG_MESSAGE, NO_PIECES, NEGATIVE_NAME,
       EMPTY_MESSAGE, REFUSED };

static ssize_t refused(int which, int fd)
{
    static struct iovec many[2000];
    struct iovec negative = {bytes, (size_t)-1};
    struct msghdr head = {.msg_iov = many, .msg_iovlen = 2000};
    switch (which) {
    case NEGATIVE_COUNT: return readv(fd, many, -1);
    case LONG_VECTOR: return readv(fd, many, 2000);
    case NO_VECTOR: return readv(fd, NULL, 1);
    case NEGATIVE_PIECE: return readv(fd, &negative, 1);
    case EMPTY_VECTOR: return readv(fd, many, 0);
    case LONG_MESSAGE: return recvmsg(fd, &head, 0);
    case NO_PIECES:
        head = (struct msghdr){.msg_iov = NULL, .msg_iovlen = 1};
        return recvmsg(fd, &head, 0);
    case NEGATIVE_NAME:
        head = (struct msghdr){.msg_iov = many, .msg_iovlen = 1, .msg_name = bytes, .msg_namelen = -1};
        return recvmsg(fd, &head, 0);
    default:
        head = (struct msghdr){.msg_iov = many, .msg_iovlen = 0};
        return recvmsg(fd, &head, 0);
    }
}

static void interrupts(int signal) { (void)signal; }

/* A signal that falls into a call that does not wait may end it all the same: of no bytes with WAITALL Linux' own call
 * does now and then. One that waits is ended by each. */
static ssize_t receive_surely(int call, int fd, size_t length, int flag)
{
    ssize_t result;
    int tries = length == 0 && (flag & MSG_WAITALL) ? 5 : 1;
    do
        result = receive(call, fd, length, flag);
    while (result < 0 && errno == EINTR && --tries > 0);
    return result;
}

static void has_come_to(const char *state, const char *what, size_t length, const char *flag, ssize_t result)
{
    if (result < 0 && errno == EINTR)
        say("%s: %s of %zu, %s waits", state, what, length, flag);
    else
        say("%s: %s of %zu, %s = %zd %s", state, what, length, flag, result, result < 0 ? strerrorname_np(errno) : "");
}

static int listener;
static struct sockaddr_in at;

/* The offer of this one is not answered: the other end is not accepted yet. */
static int unanswered(void)
{
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
    return fd;
}

static void close_both(int fd)
{
    close(fd);
    close(NEED(accept(listener, NULL, NULL)));
}

/* Nothing is there but four bytes. */
static void refill(struct pair pair)
{
    while (recv(pair.client, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    send_all(pair.server, "abcd", 4);
    wait_for(pair.client, 4);
}

static void walk(const char *state, struct pair pair, bool unread)
{
    static const size_t lengths[] = {0, 1, 8};
    for (int call = 0; call < CALLS + REFUSED; call++)
        for (int flag = 0; flag < (call < WITHOUT_FLAGS || call >= CALLS ? 1 : FLAGS); flag++)
            for (int length = 0; length < (call < CALLS ? 3 : 1); length++) {
                /* How many of nothing come before a signal depends on time. */
                if (call == RECVMMSG && lengths[length] == 0)
                    continue;
                int fd = pair.client < 0 ? unanswered() : pair.client;
                if (unread)
                    refill(pair);
                /* Whatever comes before the wait, one comes in it. */
                struct itimerval often = {{0, 10000}, {0, 10000}}, never = {{0, 0}, {0, 0}};
                NEED(setitimer(ITIMER_REAL, &often, NULL));
                if (call >= CALLS) {
                    ssize_t result = refused(call - CALLS, fd);
                    int error = errno;
                    NEED(setitimer(ITIMER_REAL, &never, NULL));
                    errno = error;
                    has_come_to(state, "refused", call - CALLS, "0", result);
                } else {
                    ssize_t result = receive_surely(call, fd, lengths[length], flags[flag].flags);
                    int error = errno;
                    NEED(setitimer(ITIMER_REAL, &never, NULL));
                    errno = error;
                    has_come_to(state, calls[call], lengths[length], flags[flag].name, result);
                }
                if (pair.client < 0)
                    close_both(fd);
            }
}

int main(void)
{
    struct sigaction action = {.sa_handler = interrupts};
    NEED(sigaction(SIGALRM, &action, NULL));
    listener = listening(&at);
    struct pair pair = promoted(), left = promoted(), ended = promoted();
    walk("not answered", (struct pair){-1, -1}, false);
    walk("nothing there", pair, false);

    /* The other end is on TCP again. */
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give_fd(channel[0], left.server);
    close(take_fd(channel[1]));
    walk("on the way back", left, false);

    /* WAITALL waits for more than there is. */
    close(ended.server);
    walk("ended", ended, false);
    walk("unread", pair, true);
    return 0;
}
