/* Every option of socket(7), tcp(7), ip(7) and ipv6(7), set on the listener, on either end before it is used, and on either
 * end after the promotion: the connection is in memory and works, or it is on TCP, which the options in `keeps` ask for. */
#include "transcript.h"
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>

#define OPTION(level, name) level, name, #name

/* What docs/compatibility.md names: the kernel acts on these with each segment or call. */
static const struct { int level, name; const char *text; } keeps[] = {
    {OPTION(SOL_SOCKET, SO_OOBINLINE)},
    {OPTION(SOL_SOCKET, SO_TIMESTAMP)},
    {OPTION(SOL_SOCKET, SO_TIMESTAMPNS)},
    {OPTION(SOL_SOCKET, SO_TIMESTAMPING)},
    {OPTION(SOL_SOCKET, SO_TIMESTAMP_NEW)},
    {OPTION(SOL_SOCKET, SO_TIMESTAMPNS_NEW)},
    {OPTION(SOL_SOCKET, SO_TIMESTAMPING_NEW)},
    {OPTION(SOL_SOCKET, SO_MAX_PACING_RATE)},
    {OPTION(SOL_SOCKET, SO_PEEK_OFF)},
    {OPTION(SOL_SOCKET, SO_RCVLOWAT)},
    {OPTION(SOL_SOCKET, SO_BINDTODEVICE)},
    {OPTION(SOL_SOCKET, SO_BINDTOIFINDEX)},
    {OPTION(SOL_SOCKET, SO_ATTACH_FILTER)},
    {OPTION(SOL_SOCKET, SO_ATTACH_BPF)},
    {OPTION(IPPROTO_TCP, TCP_ULP)},
    {OPTION(IPPROTO_TCP, TCP_REPAIR)},
    {OPTION(IPPROTO_TCP, TCP_TX_DELAY)},
    {OPTION(IPPROTO_TCP, TCP_MD5SIG)},
    {OPTION(IPPROTO_TCP, TCP_MD5SIG_EXT)},
};

/* Values that are no 1. */
static const struct linger lingers = {1, 1};
static const struct timeval second = {1, 0};
static struct sock_filter accepts_all = BPF_STMT(BPF_RET | BPF_K, 0x40000);
static const struct sock_fprog filter = {1, &accepts_all};
static const int bytes_64k = 1 << 16, segment = 1000, milliseconds_30k = 30000, stamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE,
                 delay_us = 1000, two = 2, rate = 100 << 20, offset = 0, rto_max_ms = 5000;
static const struct { int level, name; const void *value; socklen_t length; } values[] = {
    {SOL_SOCKET, SO_LINGER, &lingers, sizeof lingers},
    {SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second},
    {SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second},
    {SOL_SOCKET, SO_RCVTIMEO_NEW, &second, sizeof second},
    {SOL_SOCKET, SO_SNDTIMEO_NEW, &second, sizeof second},
    {SOL_SOCKET, SO_RCVBUF, &bytes_64k, sizeof(int)},
    {SOL_SOCKET, SO_SNDBUF, &bytes_64k, sizeof(int)},
    {SOL_SOCKET, SO_RCVBUFFORCE, &bytes_64k, sizeof(int)},
    {SOL_SOCKET, SO_SNDBUFFORCE, &bytes_64k, sizeof(int)},
    {SOL_SOCKET, SO_BINDTODEVICE, "lo", 3},
    {SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter},
    {SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof(int)},
    {SOL_SOCKET, SO_TIMESTAMPING_NEW, &stamps, sizeof(int)},
    {SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(int)},
    {SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(int)},
    {SOL_SOCKET, SO_RCVLOWAT, &two, sizeof(int)},
    {IPPROTO_TCP, TCP_CONGESTION, "reno", 4},
    {IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(int)},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, &bytes_64k, sizeof(int)},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds_30k, sizeof(int)},
    {IPPROTO_TCP, TCP_ULP, "tls", 3},
    {IPPROTO_TCP, TCP_TX_DELAY, &delay_us, sizeof(int)},
    {IPPROTO_TCP, 44 /* TCP_RTO_MAX_MS */, &rto_max_ms, sizeof(int)},
};

struct option {
    int level, name;
    const void *value;
    socklen_t length;
    bool keeps;
};

static struct option option_of(int level, int name)
{
    static const int one = 1;
    struct option option = {level, name, &one, sizeof one, false};
    for (size_t at = 0; at < sizeof values / sizeof values[0]; at++)
        if (values[at].level == level && values[at].name == name) {
            option.value = values[at].value;
            option.length = values[at].length;
        }
    for (size_t at = 0; at < sizeof keeps / sizeof keeps[0]; at++)
        option.keeps |= keeps[at].level == level && keeps[at].name == name;
    return option;
}

static int set_it(struct option option, int fd)
{
    return setsockopt(fd, option.level, option.name, option.value, option.length);
}

/* What depends on time or on the machine. */
static bool is_stable(struct option option)
{
    return !(option.level == SOL_SOCKET && (option.name == SO_INCOMING_CPU || option.name == SO_COOKIE || option.name == SO_ATTACH_FILTER))
           && !(option.level == IPPROTO_TCP && (option.name == TCP_QUICKACK || option.name == TCP_WINDOW_CLAMP));
}

static const char *where_text;

static void ask(struct option option, int fd)
{
    int value[8] = {0};
    socklen_t length = sizeof value;
    int status = getsockopt(fd, option.level, option.name, value, &length);
    if (is_stable(option))
        say("  asked: %d %s, length %u: %d", status, status < 0 ? strerrorname_np(errno) : "", length, value[0]);
}

/* recvmsg(2), with what comes beside the bytes. */
static void receive(int fd, size_t length)
{
    char bytes[64], control[512];
    struct iovec piece = {bytes, length};
    struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t count = recvmsg(fd, &head, 0);
    say("  recvmsg of %zu = %zd %s, flags %x", length, count, count < 0 ? strerrorname_np(errno) : "", head.msg_flags);
    for (struct cmsghdr *one = count < 0 ? NULL : CMSG_FIRSTHDR(&head); one; one = CMSG_NXTHDR(&head, one))
        say("    beside: %d %d, length %zu: %d", one->cmsg_level, one->cmsg_type, one->cmsg_len,
            one->cmsg_level == IPPROTO_TCP ? *(int *)CMSG_DATA(one) : 0);
}

static void peek(int fd)
{
    char bytes[3] = "";
    ssize_t count = recv(fd, bytes, 2, MSG_PEEK);
    say("  peek = %zd %s %s", count, count < 0 ? strerrorname_np(errno) : "", bytes);
}

/* Urgent bytes, which end the promotion. */
static void urgent(struct pair pair)
{
    char bytes[16];
    send_all(pair.client, "ab", 2);
    NEED(send(pair.client, "U", 1, MSG_OOB));
    send_all(pair.client, "cd", 2);
    pause_ms(20);
    for (int round = 0; round < 3; round++) {
        int mark = sockatmark(pair.server);
        ssize_t count = recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT);
        say("  at mark %d, recv = %zd", mark, count);
        show_bytes("    of them", bytes, count);
    }
}

/* How many sends are completed. */
static void without_copy(struct pair pair)
{
    static char bytes[20000];
    char control[512], unread[6];
    /* What it has not read stays readable. */
    send_all(pair.server, "unread", sizeof unread);
    wait_for(pair.client, sizeof unread);
    for (int round = 0; round < 3; round++) {
        say("  send without copy = %zd", send(pair.client, bytes, sizeof bytes, MSG_ZEROCOPY));
        take_all(pair.server, bytes, sizeof bytes);
    }
    int completed = 0;
    for (int tries = 0; tries < 100 && completed < 3; tries++) {
        struct msghdr head = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(pair.client, &head, MSG_ERRQUEUE) < 0) {
            pause_ms(5);
            continue;
        }
        for (struct cmsghdr *one = CMSG_FIRSTHDR(&head); one; one = CMSG_NXTHDR(&head, one)) {
            struct sock_extended_err *error = (struct sock_extended_err *)CMSG_DATA(one);
            if (error->ee_origin == SO_EE_ORIGIN_ZEROCOPY)
                completed += error->ee_data - error->ee_info + 1;
        }
    }
    say("  completed: %d", completed);
    take_all(pair.client, unread, sizeof unread);
    show_bytes("  unread", unread, sizeof unread);
}

/* By which way messages go. */
static void is_where_it_belongs(struct option option, struct pair pair, bool accepted)
{
    /* What is held back goes through the kernel meanwhile. */
    bool holds_back = option.level == IPPROTO_TCP && option.name == TCP_CORK;
    if (!eager() || !accepted || holds_back)
        return;
    if (!option.keeps)
        return warm(pair);
    for (int round = 0; round < 6; round++) {
        if (ping(pair) < 2 * PING) {
            errno = EPROTO;
            fprintf(stderr, "level %d, option %d, %s: ", option.level, option.name, where_text);
            fail("in memory");
        }
        usleep(500);
    }
}

static void uses(struct option option, struct pair pair, bool accepted)
{
    for (int side = 0; side < 2; side++) {
        int from = side ? pair.server : pair.client, to = side ? pair.client : pair.server;
        send_all(from, "abcdefgh", 8);
        wait_for(to, 8);
        receive(to, 4);
        peek(to);
        peek(to);
        receive(to, 16);
        if (accepted)
            ask(option, to);
    }
    if (option.level == SOL_SOCKET && option.name == SO_ZEROCOPY)
        without_copy(pair);
    if (option.level == SOL_SOCKET && option.name == SO_OOBINLINE)
        urgent(pair);
}

enum { ON_LISTENER, ON_CONNECTING, ON_CLIENT, ON_SERVER, LATER_ON_CLIENT, LATER_ON_SERVER, PLACES };
static const char *const places[] = {"on the listener", "before connect", "on the client", "on the server",
                                     "on the client, later", "on the server, later"};

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int listener(union address *at, int domain)
{
    int fd = NEED(socket(domain, SOCK_STREAM, 0));
    socklen_t length = sizeof *at;
    memset(at, 0, sizeof *at);
    if (domain == AF_INET)
        at->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    else
        at->v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    NEED(bind(fd, &at->any, length));
    NEED(listen(fd, 4));
    NEED(getsockname(fd, &at->any, &length));
    return fd;
}

static void try_at(struct option option, int place, int domain)
{
    union address at;
    int fd = listener(&at, domain), on = 1, status = 0, error = 0;
    where_text = places[place];
    if (place == ON_LISTENER)
        status = set_it(option, fd), error = errno;
    struct pair pair = {NEED(socket(domain, SOCK_STREAM, 0)), -1};
    if (place == ON_CONNECTING)
        status = set_it(option, pair.client), error = errno;
    NEED(connect(pair.client, &at.any, sizeof at));
    /* Some listeners wait for it. */
    NEED(send(pair.client, "early", 5, 0));
    pair.server = NEED(accept(fd, NULL, NULL));
    close(fd);
    NEED(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    if (place == ON_CLIENT)
        status = set_it(option, pair.client), error = errno;
    if (place == ON_SERVER)
        status = set_it(option, pair.server), error = errno;
    char bytes[8];
    take_all(pair.server, bytes, 5);
    if (place >= LATER_ON_CLIENT) {
        warm(pair);
        status = set_it(option, place == LATER_ON_CLIENT ? pair.client : pair.server), error = errno;
    }
    say("level %d, option %d, %s: %d %s", option.level, option.name, where_text, status,
        status < 0 ? strerrorname_np(error) : "");
    is_where_it_belongs(option, pair, status == 0);
    uses(option, pair, status == 0);
    close(pair.client);
    close(pair.server);
}

static bool is_refused(struct option option, int domain)
{
    union address at;
    int fd = listener(&at, domain), connected = NEED(socket(domain, SOCK_STREAM, 0));
    NEED(connect(connected, &at.any, sizeof at));
    bool refused = set_it(option, fd) < 0 && set_it(option, connected) < 0;
    close(fd);
    close(connected);
    return refused;
}

static void sweep(int level, int last, int domain)
{
    for (int name = 0; name <= last; name++) {
        struct option option = option_of(level, name);
        if (level == IPPROTO_TCP && name == TCP_REPAIR)
            continue;
        bool refused = is_refused(option, domain);
        for (int place = refused ? LATER_ON_SERVER : 0; place < PLACES; place++)
            try_at(option, place, domain);
    }
}

/* Only who is allowed to, and nothing comes through meanwhile. */
static void repaired(void)
{
    struct pair pair = promoted();
    int on = 1, off = 0;
    struct option option = option_of(IPPROTO_TCP, TCP_REPAIR);
    where_text = "later";
    int status = setsockopt(pair.client, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on);
    say("TCP_REPAIR %d %s", status, status < 0 ? strerrorname_np(errno) : "");
    if (status == 0) {
        SHOW(send(pair.client, "x", 1, MSG_DONTWAIT));
        SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off));
        is_where_it_belongs(option, pair, true);
    }
    uses(option, pair, true);
}

/* Options that are off take nothing back to TCP. */
static void turned_off(void)
{
    struct pair pair = promoted();
    for (size_t at = 0; at < sizeof keeps / sizeof keeps[0]; at++) {
        bool is_negative = keeps[at].name == SO_MAX_PACING_RATE || keeps[at].name == SO_PEEK_OFF;
        int value = keeps[at].level == SOL_SOCKET && is_negative ? -1 : 0;
        int name = keeps[at].name;
        if (keeps[at].level == SOL_SOCKET ? name == SO_ATTACH_FILTER || name == SO_ATTACH_BPF || name == SO_BINDTODEVICE : name != TCP_TX_DELAY)
            continue;
        int status = setsockopt(pair.client, keeps[at].level, keeps[at].name, &value, sizeof value);
        say("%s off: %d %s", keeps[at].text, status, status < 0 ? strerrorname_np(errno) : "");
    }
    int off = 0;
    SHOW(ioctl(pair.client, FIOASYNC, &off));
    if (eager())
        warm(pair);
    used(pair);
}

/* Sends and then makes no call any more, in a process of its own. */
static void send_and_rest(const struct sockaddr_in *at, bool much, int tells, int rests)
{
    static unsigned char bytes[2000000];
    size_t sent = 0;
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (const struct sockaddr *)at, sizeof *at));
    echo_all(fd, ROUNDS_PLAIN, PING);
    fill(bytes, 0, sizeof bytes);
    for (ssize_t count; sent < (much ? sizeof bytes : 8); sent += count)
        if ((count = send(fd, bytes + sent, much ? 7000 : 8, MSG_DONTWAIT)) < 0)
            break;
    NEED(write(tells, &sent, sizeof sent));
    char byte;
    NEED(read(rests, &byte, 1));
    _exit(0);
}

/* Set over bytes that nobody has read, in memory alone or in the kernel as well: the option waits for no call of the
 * sender's, nor do the bytes. */
static void over_unread(int level, int name, bool much)
{
    static unsigned char got[2000000];
    struct sockaddr_in at;
    int fd = listening(&at), tells[2], rests[2];
    struct option option = option_of(level, name);
    NEED(pipe(tells));
    NEED(pipe(rests));
    pid_t child = NEED(fork());
    if (child == 0)
        send_and_rest(&at, much, tells[1], rests[0]);
    int server = NEED(accept(fd, NULL, NULL));
    is_echoed(server, ROUNDS_PLAIN, PING);
    size_t sent, received = 0;
    NEED(read(tells[0], &sent, sizeof sent));
    wait_for(server, 8);
    long from = milliseconds();
    int status = set_it(option, server);
    say("level %d, option %d, over unread bytes: %d, at once %d", level, name, status, milliseconds() - from < 5000);
    while (received < sent) {
        struct pollfd one = {.fd = server, .events = POLLIN};
        ssize_t count = NEED(poll(&one, 1, 5000)) ? recv(server, got + received, sizeof got - received, MSG_DONTWAIT) : 0;
        if (count <= 0)
            break;
        received += count;
    }
    say("  all of them: %d", received == sent && same(got, 0, received));
    NEED(write(rests[1], "", 1));
    NEED(waitpid(child, NULL, 0));
    SHOW(recv(server, got, sizeof got, 0));
    close(server);
    close(fd);
    for (int way = 0; way < 2; way++) {
        close(tells[way]);
        close(rests[way]);
    }
}

int main(void)
{
    /* The kernel begins to stamp what comes some time after the first socket asks. */
    int stamped = NEED(socket(AF_INET, SOCK_DGRAM, 0)), on = 1;
    NEED(setsockopt(stamped, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
    pause_ms(200);
    sweep(SOL_SOCKET, 99, AF_INET);
    sweep(IPPROTO_TCP, 63, AF_INET);
    sweep(IPPROTO_IP, 63, AF_INET);
    sweep(IPPROTO_IPV6, 99, AF_INET6);
    repaired();
    turned_off();
    for (int much = 0; much < 2; much++) {
        over_unread(SOL_SOCKET, SO_RCVLOWAT, much);
        over_unread(SOL_SOCKET, SO_TIMESTAMP, much);
        over_unread(SOL_SOCKET, SO_OOBINLINE, much);
    }
    return 0;
}
