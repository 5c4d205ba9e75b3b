/* Programs of tests/limits/run.py: `limits ROLE PORT [ARGUMENT]`. Each client prints one line, its outcome; the byte at
 * position n of a stream is n % 251, so that one lost or doubled byte is seen. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 64, LARGEST = 1024, BURST = 100 << 20, STREAM = 24 << 20, BROADCASTS = 400 };
/* The first byte of a message to the server says what it does with it. */
enum { ECHO = 1, LATER, FLOOD, SEND_BURST, ECHO_STREAM };
enum { LATER_MS = 300 };

static int port;

static void fail(const char *what)
{
    printf("%s: %s\n", what, errno ? strerror(errno) : "wrong bytes");
    exit(1);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void rest(int ms)
{
    struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    while (nanosleep(&time, &time) < 0 && errno == EINTR)
        ;
}

static int write_all(int fd, const unsigned char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t done = send(fd, bytes, count, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        bytes += done;
        count -= done;
    }
    return 0;
}

/* 1: all read, 0: end of the stream, -1: an error. */
static int read_all(int fd, unsigned char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t done = recv(fd, bytes, count, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return (int) done;
        bytes += done;
        count -= done;
    }
    return 1;
}

static int dial(void)
{
    struct sockaddr_in there = { AF_INET, htons(port), { htonl(INADDR_LOOPBACK) }, { 0 } };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *) &there, sizeof there) < 0)
        fail("connect");
    return fd;
}

static int listener(void)
{
    struct sockaddr_in here = { AF_INET, htons(port), { htonl(INADDR_LOOPBACK) }, { 0 } };
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *) &here, sizeof here) < 0 || listen(fd, 1024) < 0)
        fail("listen");
    return fd;
}

static void start(void *(*run)(void *), intptr_t argument, pthread_t *thread)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    if (pthread_create(thread, &attributes, run, (void *) argument) != 0)
        fail("pthread_create");
    pthread_attr_destroy(&attributes);
}

static void fill(unsigned char *bytes, size_t count, size_t position)
{
    for (size_t at = 0; at < count; at++)
        bytes[at] = (position + at) % 251;
}

static void check(const unsigned char *bytes, size_t count, size_t position)
{
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != (position + at) % 251) {
            printf("wrong byte at %zu\n", position + at);
            exit(1);
        }
}

static void *serve(void *argument)
{
    int fd = (int) (intptr_t) argument;
    unsigned char message[MESSAGE], part[LARGEST];
    while (read_all(fd, message, MESSAGE) == 1) {
        if (message[0] == LATER)
            rest(LATER_MS);
        if (message[0] == SEND_BURST) {
            unsigned char *burst = malloc(BURST);
            fill(burst, BURST, 0);
            write_all(fd, burst, BURST);
            free(burst);
        }
        while (message[0] == FLOOD && write_all(fd, message, MESSAGE) == 0)
            ;
        for (size_t left = message[0] == ECHO_STREAM ? STREAM : 0; left > 0; left -= LARGEST)
            if (read_all(fd, part, LARGEST) != 1 || write_all(fd, part, LARGEST) < 0)
                break;
        if ((message[0] == ECHO || message[0] == LATER) && write_all(fd, message, MESSAGE) < 0)
            break;
    }
    close(fd);
    return NULL;
}

static void server(void)
{
    int fd = listener();
    for (;;) {
        pthread_t thread;
        int connection = accept(fd, NULL, NULL);
        if (connection < 0)
            fail("accept");
        start(serve, connection, &thread);
        pthread_detach(thread);
    }
}

static void ask(int fd, int kind)
{
    unsigned char message[MESSAGE] = { (unsigned char) kind };
    if (write_all(fd, message, MESSAGE) < 0)
        fail("send");
}

static void answered(int fd, int kind)
{
    unsigned char message[MESSAGE];
    errno = 0;
    if (read_all(fd, message, MESSAGE) != 1 || message[0] != kind)
        fail("recv");
}

static void talk(int fd, int times)
{
    for (int at = 0; at < times; at++) {
        ask(fd, ECHO);
        answered(fd, ECHO);
    }
}

/* A connection that has carried enough to be promoted. */
static int used(void)
{
    int fd = dial();
    talk(fd, 300);
    return fd;
}

/* Talks until the server is gone, or for so many seconds. */
static void endure(int seconds)
{
    int fd = used();
    unsigned char message[MESSAGE] = { ECHO };
    double until = now_ms() + seconds * 1e3, worst = 0;
    printf("ready\n");
    fflush(stdout);
    while (now_ms() < until) {
        double before = now_ms();
        if (write_all(fd, message, MESSAGE) < 0) {
            printf("send: %s\n", strerror(errno));
            return;
        }
        int got = read_all(fd, message, MESSAGE);
        if (got != 1) {
            printf("recv: %s\n", got == 0 ? "end of stream" : strerror(errno));
            return;
        }
        worst = now_ms() - before > worst ? now_ms() - before : worst;
    }
    printf("goes on%s\n", worst > 1000 ? ", after a stop" : "");
}

static long raw(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

/* Waits by a system call of its own on a socket that blocks. */
static void raw_epoll(void)
{
    int fd = used(), set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    ask(fd, LATER);
    long got = raw(SYS_epoll_wait, set, (long) &event, 1, 5000);
    answered(fd, LATER);
    printf("%s\n", got == 1 ? "woken" : "not woken in 5 s");
}

static void *drain(void *argument)
{
    unsigned char bytes[MESSAGE];
    while (read((int) (intptr_t) argument, bytes, MESSAGE) > 0)
        ;
    return NULL;
}

/* Cancels a thread whose reads always find something. */
static void cancelled(void)
{
    int fd = used();
    pthread_t thread;
    ask(fd, FLOOD);
    start(drain, fd, &thread);
    rest(300);
    double before = now_ms();
    void *result;
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("%s%s\n", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled", now_ms() - before > 100 ? " late" : "");
}

static sigjmp_buf place;

static void leave(int number)
{
    (void) number;
    siglongjmp(place, 1);
}

static void nothing(int number)
{
    (void) number;
}

static void alarms(void (*handler)(int), int flags, int first_us, int each_us)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    struct itimerval timer = { { 0, each_us }, { 0, first_us } };
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* SIGALRM leaves a read that spins, and one that sleeps, by siglongjmp. */
static void left(void)
{
    int fd = used();
    unsigned char message[MESSAGE];
    volatile int leaves = 0, flags = 0;
    for (volatile int round = 0; round < 20; round++) {
        flags = round % 2 ? SA_RESTART : 0;
        ask(fd, LATER);
        if (sigsetjmp(place, 1) == 0) {
            alarms(leave, flags, round % 4 < 2 ? 20 : 50000, 0);
            read(fd, message, MESSAGE);
        } else {
            leaves++;
        }
        answered(fd, LATER);
    }
    printf("left %d reads of 20, none lost\n", leaves);
}

/* One blocking write, read at once, signals throughout. */
static void burst(void)
{
    int fd = used();
    unsigned char *bytes = malloc(BURST);
    alarms(nothing, SA_RESTART, 1000, 1000);
    ask(fd, SEND_BURST);
    for (size_t at = 0; at < BURST;) {
        ssize_t got = recv(fd, bytes + at, BURST - at, MSG_WAITALL);
        if (got <= 0)
            fail("recv");
        at += got;
    }
    check(bytes, BURST, 0);
    printf("every byte\n");
}

static int shared_fd, other_fd;
static char first_end[64];

static void *read_once(void *argument)
{
    (void) argument;
    unsigned char message[MESSAGE];
    ssize_t got = recv(shared_fd, message, MESSAGE, 0);
    snprintf(first_end, sizeof first_end, "%s", got < 0 ? strerror(errno) : got == 0 ? "end" : "the answer");
    return NULL;
}

/* While one thread reads, another one closes, replaces, or makes the descriptor nonblocking. */
static void changed(void)
{
    for (int kind = 0; kind < 3; kind++) {
        pthread_t thread;
        shared_fd = used();
        other_fd = used();
        ask(shared_fd, LATER);
        start(read_once, 0, &thread);
        rest(100);
        if (kind == 0)
            close(shared_fd);
        else if (kind == 1)
            dup2(other_fd, shared_fd);
        else
            fcntl(shared_fd, F_SETFL, fcntl(shared_fd, F_GETFL) | O_NONBLOCK);
        pthread_join(thread, NULL);
        printf("%s: %s; ", (const char *[]){ "close", "dup2", "O_NONBLOCK" }[kind], first_end);
        if (kind == 1)
            talk(shared_fd, 300);
    }
    printf("\n");
}

/* 600 connections, of which select waits for all. */
static void many_selected(void)
{
    int fds[600], most = 0;
    fd_set set;
    for (int at = 0; at < 600; at++)
        talk(fds[at] = dial(), 40);
    for (int round = 0; round < 20; round++) {
        FD_ZERO(&set);
        ask(fds[round * 29], LATER);
        for (int at = 0; at < 600; at++) {
            if (fds[at] >= FD_SETSIZE) {
                printf("descriptor %d is beyond FD_SETSIZE\n", fds[at]);
                exit(1);
            }
            FD_SET(fds[at], &set);
            most = fds[at] > most ? fds[at] : most;
        }
        struct timeval time = { 5, 0 };
        if (select(most + 1, &set, NULL, NULL, &time) != 1 || !FD_ISSET(fds[round * 29], &set))
            fail("select");
        answered(fds[round * 29], LATER);
    }
    printf("each found\n");
}

static void *write_stream(void *argument)
{
    unsigned char *bytes = malloc(STREAM);
    fill(bytes, STREAM, 0);
    if (write_all((int) (intptr_t) argument, bytes, STREAM) < 0)
        fail("send");
    return NULL;
}

/* Both ways full: nothing is read for 2 s, in which run.py stops the server, and for 2 s more. */
static void full(void)
{
    int fd = used();
    unsigned char *bytes = malloc(STREAM);
    pthread_t thread;
    ask(fd, ECHO_STREAM);
    start(write_stream, fd, &thread);
    rest(500);
    printf("ready\n");
    fflush(stdout);
    rest(3500);
    if (read_all(fd, bytes, STREAM) != 1)
        fail("recv");
    check(bytes, STREAM, 0);
    printf("every byte\n");
}

/* Parent and child take turns on one connection. */
static void forked(void)
{
    int fd = used(), turns[2], backs[2];
    char token = 0;
    if (pipe(turns) < 0 || pipe(backs) < 0)
        fail("pipe");
    pid_t child = fork();
    int *from = child ? backs : turns, *to = child ? turns : backs;
    close(from[1]);
    close(to[0]);
    for (int round = 0; round < 200; round++) {
        if (!child && read(from[0], &token, 1) != 1)
            _exit(1);
        talk(fd, 10);
        if (write(to[1], &token, 1) != 1 || (child && read(from[0], &token, 1) != 1))
            fail("turn");
    }
    if (!child)
        _exit(0);
    int status;
    waitpid(child, &status, 0);
    printf("%s\n", status == 0 ? "both go on" : "the child failed");
}

static void resume(int fd)
{
    talk(fd, 300);
    printf("goes on\n");
}

static void executed(char **arguments)
{
    char number[16];
    snprintf(number, sizeof number, "%d", used());
    execl("/proc/self/exe", arguments[0], "resume", arguments[2], number, NULL);
    fail("exec");
}

/* A connection goes to another program by SCM_RIGHTS. */
static void passed(char **arguments)
{
    int pair[2], fd = used();
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pid_t child = fork();
    char number[16], byte = 0, control[CMSG_SPACE(sizeof fd)] = { 0 };
    if (child == 0) {
        snprintf(number, sizeof number, "%d", pair[1]);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        execl("/proc/self/exe", arguments[0], "receive", arguments[2], number, NULL);
        _exit(1);
    }
    close(pair[1]);
    struct iovec vector = { &byte, 1 };
    struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(pair[0], &message, 0) != 1)
        fail("sendmsg");
    close(fd);
    waitpid(child, NULL, 0);
}

static void received(int from)
{
    int fd;
    char byte, control[CMSG_SPACE(sizeof fd)];
    struct iovec vector = { &byte, 1 };
    struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    if (recvmsg(from, &message, 0) != 1)
        fail("recvmsg");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    resume(fd);
}

/* Neither files nor /proc from before the first connection on. */
static void rooted(const char *folder)
{
    if (chroot(folder) < 0 || chdir("/") < 0)
        fail("chroot");
    endure(1);
}

/* Only reading, writing and ending are left; all else kills. */
static void confined(void)
{
    int fd = used();
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        fail("seccomp");
    talk(fd, 300);
    static const char done[] = "goes on\n";
    syscall(SYS_write, 1, done, sizeof done - 1);
    _exit(0);
}

/* The time of a broadcast, and an answer to each. */
static int broadcast_fds[LARGEST];
static atomic_int to_answer;
static int receivers;
static double delays[LARGEST * BROADCASTS];
static atomic_int delay_count;

static double cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

static void *count_answers(void *argument)
{
    unsigned char answer;
    while (recv(broadcast_fds[(intptr_t) argument], &answer, 1, 0) == 1)
        atomic_fetch_sub(&to_answer, 1);
    return NULL;
}

static void broadcaster(void)
{
    int fd = listener();
    pthread_t threads[LARGEST];
    for (int at = 0; at < receivers; at++)
        if ((broadcast_fds[at] = accept(fd, NULL, NULL)) < 0)
            fail("accept");
    for (int at = 0; at < receivers; at++)
        start(count_answers, at, &threads[at]);
    double before = cpu_us(), begun = now_ms(), due = begun;
    for (int round = 0; round < BROADCASTS; round++) {
        unsigned char message[MESSAGE] = { 0 };
        double sent = now_ms();
        memcpy(message, &sent, sizeof sent);
        atomic_store(&to_answer, receivers);
        for (int at = 0; at < receivers; at++)
            if (write_all(broadcast_fds[at], message, MESSAGE) < 0)
                fail("send");
        while (atomic_load(&to_answer) > 0)
            usleep(200);
        due += 10;
        if (due > now_ms())
            usleep((due - now_ms()) * 1e3);
    }
    printf("{\"cpu_us\": %.1f, \"seconds\": %.3f}\n", (cpu_us() - before) / BROADCASTS, (now_ms() - begun) / 1e3);
    fflush(stdout);
    _exit(0);
}

static void *receive_broadcasts(void *argument)
{
    (void) argument;
    int fd = dial();
    unsigned char message[MESSAGE], answer = 1;
    while (read_all(fd, message, MESSAGE) == 1) {
        double sent;
        memcpy(&sent, message, sizeof sent);
        delays[atomic_fetch_add(&delay_count, 1)] = now_ms() - sent;
        if (send(fd, &answer, 1, MSG_NOSIGNAL) != 1)
            break;
    }
    return NULL;
}

static int ascending(const void *one, const void *other)
{
    double difference = *(const double *) one - *(const double *) other;
    return difference < 0 ? -1 : difference > 0;
}

static void audience(void)
{
    pthread_t threads[LARGEST];
    for (int at = 0; at < receivers; at++)
        start(receive_broadcasts, at, &threads[at]);
    for (int at = 0; at < receivers; at++)
        pthread_join(threads[at], NULL);
    int count = delay_count;
    qsort(delays, count, sizeof *delays, ascending);
    printf("{\"received\": %d, \"p50_us\": %.1f, \"p99_us\": %.1f, \"cpu_us\": %.1f}\n", count, delays[count / 2] * 1e3,
           delays[(int) (count * 0.99)] * 1e3, cpu_us() / BROADCASTS);
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    const char *role = arguments[1];
    int number = count > 3 ? atoi(arguments[3]) : 0;
    port = atoi(arguments[2]);
    receivers = number > LARGEST ? LARGEST : number;
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(role, "server")) server();
    else if (!strcmp(role, "endure")) endure(number);
    else if (!strcmp(role, "raw-epoll")) raw_epoll();
    else if (!strcmp(role, "cancel")) cancelled();
    else if (!strcmp(role, "leave")) left();
    else if (!strcmp(role, "burst")) burst();
    else if (!strcmp(role, "change")) changed();
    else if (!strcmp(role, "select")) many_selected();
    else if (!strcmp(role, "full")) full();
    else if (!strcmp(role, "fork")) forked();
    else if (!strcmp(role, "exec")) executed(arguments);
    else if (!strcmp(role, "resume")) resume(number);
    else if (!strcmp(role, "pass")) passed(arguments);
    else if (!strcmp(role, "receive")) received(number);
    else if (!strcmp(role, "root")) rooted(arguments[3]);
    else if (!strcmp(role, "confine")) confined();
    else if (!strcmp(role, "broadcaster")) broadcaster();
    else if (!strcmp(role, "audience")) audience();
    else return 2;
    return 0;
}
