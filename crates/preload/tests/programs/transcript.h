/* What every program here uses: a connection whose ends this process holds, and the
 * transcript of what calls on it came to. A transcript tells nothing that depends on time. */
#ifndef TRANSCRIPT_H
#define TRANSCRIPT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* One line of the transcript. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (write(STDOUT_FILENO, line, length) != length)
        _exit(4);
}

/* The program itself failed: no transcript can be compared. */
static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(3);
}

#define NEED(call) ({ __typeof__(call) need_ = (call); if (need_ < 0) fail(#call); need_; })

/* What errno is before a call that is shown: one that succeeds leaves it alone. */
#define UNTOUCHED 113

static UNUSED long shown(const char *text, long result)
{
    int error = errno;
    if (result < 0)
        say("%s = %ld %s", text, result, strerrorname_np(error));
    else if (error != UNTOUCHED)
        say("%s = %ld, and errno became %s", text, result, strerrorname_np(error));
    else
        say("%s = %ld", text, result);
    errno = error;
    return result;
}

/* Makes a call and tells of it. */
#define SHOW(call) (errno = UNTOUCHED, shown(#call, (long)(call)))

/* Bytes, as text. */
static UNUSED void show_bytes(const char *what, const void *bytes, long count)
{
    char text[256];
    const unsigned char *from = bytes;
    int length = 0;
    for (long at = 0; at < count && length < 240; at++)
        length += from[at] >= 32 && from[at] < 127
                      ? snprintf(text + length, sizeof text - length, "%c", from[at])
                      : snprintf(text + length, sizeof text - length, "\\%02x", from[at]);
    text[length] = 0;
    say("%s: %ld \"%s\"", what, count, text);
}

struct pair {
    int client, server;
};

static UNUSED int listening(struct sockaddr_in *at)
{
    int listener = NEED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t length = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    NEED(bind(listener, (struct sockaddr *)at, length));
    NEED(listen(listener, 8));
    NEED(getsockname(listener, (struct sockaddr *)at, &length));
    return listener;
}

/* A new TCP connection. */
static UNUSED struct pair connected(void)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    struct pair pair;
    pair.client = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
    pair.server = NEED(accept(listener, NULL, NULL));
    close(listener);
    /* Whether a small write waits for an acknowledgement depends on time. */
    int on = 1;
    NEED(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    NEED(setsockopt(pair.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    return pair;
}

static UNUSED void send_all(int fd, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;)
        done += NEED(send(fd, (const char *)bytes + done, count - done, 0));
}

static UNUSED void take_all(int fd, void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t took = NEED(recv(fd, (char *)bytes + done, count - done, 0));
        if (took == 0) {
            errno = EPIPE;
            fail("the connection ended early");
        }
        done += took;
    }
}

/* Sends back what comes, `rounds` times `size` bytes. */
static UNUSED void echo_all(int fd, int rounds, size_t size)
{
    char bytes[64];
    for (int round = 0; round < rounds; round++) {
        take_all(fd, bytes, size);
        send_all(fd, bytes, size);
    }
}

/* Whether the other end does so. */
static UNUSED bool is_echoed(int fd, int rounds, size_t size)
{
    bool right = true;
    for (int round = 0; round < rounds; round++) {
        char sent[64], got[64];
        memset(sent, round, size);
        send_all(fd, sent, size);
        take_all(fd, got, size);
        right &= !memcmp(sent, got, size);
    }
    return right;
}

static UNUSED long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint64_t came_by_tcp(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    return info.tcpi_bytes_received;
}

static UNUSED bool eager(void)
{
    const char *mode = getenv("MEGAPIPE_PROMOTE");
    return mode && !strcmp(mode, "eager");
}

/* Where the library's descriptors lie, if RLIMIT_NOFILE is higher. */
enum { FIRST_HIDDEN = 1024 };

/* Bytes in all pipes at the numbers of doorbells. */
static UNUSED int announced(void)
{
    int all = 0;
    for (int fd = FIRST_HIDDEN; fd < FIRST_HIDDEN + 176; fd++) {
        struct stat about;
        int bytes = 0;
        if (fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) && ioctl(fd, FIONREAD, &bytes) == 0)
            all += bytes;
    }
    return all;
}

/* Until the process sleeps, or is stopped. */
static UNUSED void wait_until(pid_t process, char state)
{
    char path[64], line[256], now = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    for (int tries = 0; tries < 10000 && now != state; tries++) {
        FILE *file = fopen(path, "r");
        if (file && fgets(line, sizeof line, file))
            now = strrchr(line, ')')[2];
        if (file)
            fclose(file);
        usleep(1000);
    }
    if (now != state)
        fail("the state of the child");
}

/* The monitor answers within milliseconds, unless it does not get to run. */
enum { PING = 64, ROUNDS_PLAIN = 16, PATIENCE_MS = 30000 };

/* One message each way; how many bytes of it the kernel carried. */
static UNUSED uint64_t ping(struct pair pair)
{
    char bytes[PING] = {0};
    uint64_t before = came_by_tcp(pair.client) + came_by_tcp(pair.server);
    send_all(pair.client, bytes, PING);
    take_all(pair.server, bytes, PING);
    send_all(pair.server, bytes, PING);
    take_all(pair.client, bytes, PING);
    return came_by_tcp(pair.client) + came_by_tcp(pair.server) - before;
}

/* Sends messages to and fro until the kernel no longer carries them, if they are to be promoted
 * at all. The sockets have to be blocking ones. */
static UNUSED void warm(struct pair pair)
{
    long end = milliseconds() + PATIENCE_MS;
    int calm = 0;
    for (int round = 0; eager() ? milliseconds() < end : round < ROUNDS_PLAIN; round++) {
        calm = ping(pair) < PING ? calm + 1 : 0;
        if (calm == 4)
            return;
        if (eager())
            usleep(500);
    }
    if (eager()) {
        errno = ETIMEDOUT;
        fail("the connection was not promoted");
    }
}

/* The same numbers in each run of a program. */
static UNUSED unsigned next_random(unsigned *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 16;
}

static UNUSED void shuffle(int *order, int count, unsigned *seed)
{
    for (int which = count - 1; which > 0; which--) {
        int other = next_random(seed) % (which + 1), here = order[which];
        order[which] = order[other];
        order[other] = here;
    }
}

/* This process and those that it forks. */
static UNUSED void stay_on_one_cpu(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* As warm(), of a connection whose other end, in another process, answers this byte with so many. */
static UNUSED void warm_far(int fd, char ask, void *answer, size_t length)
{
    long end = milliseconds() + PATIENCE_MS;
    int calm = 0;
    for (int round = 0; eager() ? calm < 4 && milliseconds() < end : round < ROUNDS_PLAIN; round++) {
        uint64_t before = came_by_tcp(fd);
        send_all(fd, &ask, 1);
        take_all(fd, answer, length);
        calm = came_by_tcp(fd) - before < length ? calm + 1 : 0;
        usleep(eager() ? 500 : 0);
    }
}

/* A connection that was promoted, if any are. */
static UNUSED struct pair promoted(void)
{
    struct pair pair = connected();
    warm(pair);
    return pair;
}

static UNUSED void nonblocking(int fd)
{
    NEED(fcntl(fd, F_SETFL, NEED(fcntl(fd, F_GETFL)) | O_NONBLOCK));
}

/* Waits until `fd` can be read without asking any readiness call: what a test of these needs. */
static UNUSED void wait_for(int fd, int bytes)
{
    for (int tries = 0; tries < 20000; tries++) {
        int unread = 0;
        NEED(ioctl(fd, FIONREAD, &unread));
        if (unread >= bytes)
            return;
        usleep(200);
    }
    errno = ETIMEDOUT;
    fail("the bytes do not come");
}

static UNUSED void pause_ms(int milliseconds)
{
    usleep(milliseconds * 1000);
}

/* Until a thread of this process sleeps in its call; 0: it has not begun. */
static UNUSED void until_asleep(volatile pid_t *thread)
{
    for (int look = 0; look < 20000; look++) {
        char name[64], text[512] = "";
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", *thread);
        int file = *thread ? open(name, O_RDONLY) : -1;
        if (file >= 0 && read(file, text, sizeof text - 1) < 0)
            fail("stat");
        if (file >= 0)
            close(file);
        char *state = strrchr(text, ')');
        if (state && state[2] == 'S')
            return;
        usleep(500);
    }
    errno = ETIMEDOUT;
    fail("the thread never slept");
}

/* Events by name. */
static UNUSED const char *events_text(unsigned events)
{
    static __thread char text[128];
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"},
        {POLLNVAL, "NVAL"}, {POLLRDNORM, "RDNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRNORM, "WRNORM"},
        {POLLWRBAND, "WRBAND"}, {POLLRDHUP, "RDHUP"},
    };
    text[0] = 0;
    for (size_t at = 0; at < sizeof names / sizeof names[0]; at++)
        if (events & names[at].bit) {
            strcat(text, text[0] ? "|" : "");
            strcat(text, names[at].name);
        }
    return text[0] ? text : "none";
}

/* epoll_wait(2), with its events by what they say. */
static UNUSED int show_epoll(const char *what, int set, int timeout)
{
    struct epoll_event events[8];
    errno = UNTOUCHED;
    int count = epoll_wait(set, events, 8, timeout);
    int error = errno;
    say("%s: epoll_wait = %d%s%s", what, count, count < 0 ? " " : "",
        count < 0 ? strerrorname_np(error) : "");
    /* Their order is nobody's business. */
    for (unsigned data = 0; data < 64; data++)
        for (int at = 0; at < count; at++)
            if (events[at].data.u64 == data)
                say("  %u: %s", data, events_text(events[at].events));
    return count;
}

static UNUSED int add(int set, int fd, unsigned events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static UNUSED int modify(int set, int fd, unsigned events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* poll(2) of one descriptor. */
static UNUSED int show_poll(const char *what, int fd, short events, int timeout)
{
    struct pollfd one = {.fd = fd, .events = events};
    errno = UNTOUCHED;
    int count = poll(&one, 1, timeout);
    say("%s: poll = %d %s", what, count, count < 0 ? strerrorname_np(errno) : events_text(one.revents));
    return count;
}

/* Bytes that can be told from others: the one at each place of a stream. */
static UNUSED unsigned char byte_at(uint64_t place)
{
    return (unsigned char)(place * 31 + (place >> 8) * 7 + (place >> 16) * 13);
}

static UNUSED void fill(unsigned char *bytes, uint64_t from, size_t count)
{
    for (size_t at = 0; at < count; at++)
        bytes[at] = byte_at(from + at);
}

static UNUSED bool same(const unsigned char *bytes, uint64_t from, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != byte_at(from + at))
            return false;
    return true;
}

/* Gives a descriptor to whoever reads from the channel. */
static UNUSED void give_fd(int channel, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec one = {"x", 1};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *message = CMSG_FIRSTHDR(&head);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(message), &fd, sizeof fd);
    NEED(sendmsg(channel, &head, 0));
}

/* Takes the one that was given. */
static UNUSED int take_fd(int channel)
{
    int fd;
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte;
    struct iovec one = {&byte, 1};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    NEED(recvmsg(channel, &head, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&head)), sizeof fd);
    return fd;
}
/* The connection goes on as before. */
static UNUSED void used(struct pair pair)
{
    char bytes[16];
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "used", 4, 0));
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(send(pair.server, "again", 5, 0));
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    }
}

/* What became of a child. */
static UNUSED void status_of(pid_t child)
{
    int status;
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
}
#endif
