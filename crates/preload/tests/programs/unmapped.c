/* Memory that is not there, or not to be written, where a program could have some: EFAULT, and nothing is lost. Faults of
 * the program's own are what they are without the library, and so is what sigaction(2) tells. */
#include "transcript.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

enum { PAGE = 65536 };

/* The first page can be used, the second only be read, the third not at all. */
static char *pages(void)
{
    char *start = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        fail("mmap");
    memset(start, 'm', 2 * PAGE);
    NEED(mprotect(start + PAGE, PAGE, PROT_READ));
    NEED(mprotect(start + 2 * PAGE, PAGE, PROT_NONE));
    return start;
}

/* A file of one page, of which two are mapped. */
static char *beyond_its_file(void)
{
    char name[] = "/tmp/megapipe-unmapped-XXXXXX";
    int file = NEED(mkstemp(name));
    NEED(unlink(name));
    NEED(ftruncate(file, PAGE));
    char *start = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED)
        fail("mmap");
    close(file);
    return start + PAGE;
}

static void sends(struct pair pair, char *none)
{
    struct iovec parts[2] = {{"good ", 5}, {none, 4}};
    struct msghdr head = {.msg_iov = parts + 1, .msg_iovlen = 1}, nowhere = {.msg_iov = (void *)none, .msg_iovlen = 1};
    SHOW(send(pair.client, none, 4, 0));
    SHOW(write(pair.client, none, 100));
    SHOW(sendto(pair.client, none, 4, MSG_DONTWAIT, NULL, 0));
    SHOW(writev(pair.client, parts + 1, 1));
    SHOW(writev(pair.client, (void *)none, 1));
    SHOW(sendmsg(pair.client, &head, 0));
    SHOW(sendmsg(pair.client, &nowhere, 0));
    SHOW(sendmsg(pair.client, (void *)none, 0));
    SHOW(sendmmsg(pair.client, (void *)none, 1, 0));
    int file = NEED(open("/proc/self/exe", O_RDONLY));
    SHOW(sendfile(pair.client, file, (void *)none, 4));
    close(file);
}

static void receives(struct pair pair, char *none)
{
    char bytes[8];
    struct iovec part = {none, 4};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1}, nowhere = {.msg_iov = (void *)none, .msg_iovlen = 1};
    SHOW(send(pair.client, "abcdefgh", 8, 0));
    wait_for(pair.server, 8);
    SHOW(recv(pair.server, none, 4, 0));
    SHOW(recv(pair.server, none, 4, MSG_PEEK));
    SHOW(read(pair.server, none, 100));
    SHOW(readv(pair.server, &part, 1));
    SHOW(readv(pair.server, (void *)none, 1));
    SHOW(recvmsg(pair.server, &head, 0));
    SHOW(recvmsg(pair.server, &nowhere, 0));
    SHOW(recvmsg(pair.server, (void *)none, 0));
    SHOW(recvmmsg(pair.server, (void *)none, 1, 0, NULL));
    SHOW(ioctl(pair.server, FIONREAD, none));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    show_bytes("nothing was taken", bytes, 8);
    /* Where nothing comes, nothing is missed. */
    SHOW(recv(pair.server, none, 4, MSG_DONTWAIT));
}

static void asks(struct pair pair, char *none)
{
    int value = 1;
    socklen_t length = sizeof value;
    struct timespec no_time = {0, 0};
    struct timeval no_span = {0, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server, &set);
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, none, &length));
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, &value, (void *)none));
    SHOW(getsockopt(pair.client, SOL_SOCKET, SO_ERROR, none, &length));
    SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, none, sizeof value));
    SHOW(setsockopt(pair.client, SOL_SOCKET, SO_SNDBUF, none, sizeof value));
    SHOW(poll((void *)none, 1, 0));
    SHOW(ppoll((void *)none, 1, &no_time, NULL));
    SHOW(select(pair.server + 1, (void *)none, NULL, NULL, &no_span));
    SHOW(select(pair.server + 1, &set, (void *)none, NULL, &no_span));
    int own = NEED(epoll_create1(0));
    SHOW(epoll_ctl(own, EPOLL_CTL_ADD, pair.server, (void *)none));
    NEED(add(own, pair.server, EPOLLIN, 1));
    SHOW(epoll_wait(own, (void *)none, 1, 0));
    send_all(pair.client, "x", 1);
    SHOW(epoll_wait(own, (void *)none, 1, 1000));
    show_epoll("it is still there", own, 1000);
    take_all(pair.server, &value, 1);
    close(own);
}

/* More than a ring holds is unread, and the room for it ends where the kernel's part begins, or elsewhere. */
static void spilled(void)
{
    enum { SENT = 1 << 20, RING = 261 << 10 };
    static char sent[SENT], got[SENT];
    char *room = mmap(NULL, SENT + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        fail("mmap");
    NEED(mprotect(room + SENT, PAGE, PROT_NONE));
    for (int there = RING - 4096 * 4; there < RING + 4096 * 8; there += 1021) {
        struct pair pair = promoted();
        fill((unsigned char *)sent, 0, SENT);
        long size = NEED(send(pair.client, sent, SENT, MSG_DONTWAIT)), done = 0;
        NEED(shutdown(pair.client, SHUT_WR));
        long count = recv(pair.server, room + SENT - there, SENT, 0);
        if (count > 0)
            memcpy(got, room + SENT - there, done = count);
        else if (count == 0 || errno != EFAULT)
            say("crossing: %ld", count);
        while ((count = recv(pair.server, got + done, SENT - done, 0)) > 0)
            done += count;
        if (count != 0 || done != size || !same((unsigned char *)got, 0, done))
            say("with room for %d: lost %ld of %ld", there, size - done, size);
        close(pair.client);
        close(pair.server);
    }
}

/* What a call leaves beside the bytes has no room, or is to be read only. */
static void beside(struct pair pair, char *none, char *fixed)
{
    char bytes[8], from[16];
    struct iovec part = {bytes, 1};
    struct msghdr *head = (void *)(fixed + 64);
    struct mmsghdr *many = (void *)(fixed + 256);
    NEED(mprotect(fixed, PAGE, PROT_READ | PROT_WRITE));
    *head = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    *many = (struct mmsghdr){.msg_hdr = *head};
    struct timespec *time = (void *)(fixed + 512);
    struct timeval *span = (void *)(fixed + 576);
    *time = (struct timespec){0, 1000000};
    *span = (struct timeval){0, 1000};
    NEED(mprotect(fixed, PAGE, PROT_READ));
    memcpy(bytes, "m", 1);
    SHOW(sendmsg(pair.client, head, 0));
    SHOW(sendmmsg(pair.client, many, 1, 0));
    SHOW(send(pair.client, "more of it", 10, 0));
    wait_for(pair.server, 12);
    SHOW(recvmsg(pair.server, head, 0));
    SHOW(recvmmsg(pair.server, many, 1, 0, NULL));
    socklen_t length = -1;
    struct sockaddr_in name;
    SHOW(recvfrom(pair.server, bytes, 1, 0, (void *)&name, (void *)none));
    SHOW(recvfrom(pair.server, bytes, 1, 0, (void *)&name, &length));
    SHOW(sendto(pair.client, "x", 1, 0, (void *)none, 16));
    SHOW(sendto(pair.client, "x", 1, 0, (void *)from, 1000));
    struct msghdr bad = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = none, .msg_namelen = 16};
    SHOW(sendmsg(pair.client, &bad, 0));
    bad.msg_namelen = -1;
    SHOW(sendmsg(pair.client, &bad, 0));
    SHOW(recvmsg(pair.server, &bad, 0));
    bad = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = none, .msg_controllen = 64};
    SHOW(sendmsg(pair.client, &bad, 0));
    bad.msg_controllen = -1;
    SHOW(sendmsg(pair.client, &bad, 0));
    struct pollfd one = {.fd = pair.client, .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.client, &set);
    SHOW(syscall(SYS_ppoll, &one, 1L, none, NULL, 8L));
    SHOW(syscall(SYS_ppoll, &one, 1L, time, NULL, 8L));
    SHOW(syscall(SYS_pselect6, pair.client + 1L, &set, NULL, NULL, none, NULL));
    SHOW(syscall(SYS_pselect6, pair.client + 1L, &set, NULL, NULL, time, none));
    SHOW(syscall(SYS_pselect6, pair.client + 1L, &set, NULL, NULL, time, NULL));
#ifdef SYS_select
    FD_SET(pair.client, &set);
    SHOW(syscall(SYS_select, pair.client + 1L, &set, NULL, NULL, none));
    SHOW(syscall(SYS_select, pair.client + 1L, &set, NULL, NULL, span));
#endif
    int own = NEED(epoll_create1(0));
    struct epoll_event event;
    NEED(add(own, pair.server, EPOLLIN, 1));
    SHOW(epoll_pwait(own, &event, 1, 0, (void *)none));
    close(own);
    void *kernels = (void *)-4096;
    SHOW(recv(pair.client, kernels, 1, MSG_DONTWAIT));
    SHOW(recv(pair.server, kernels, 1, MSG_TRUNC));
    long left = 0;
    while (recv(pair.server, bytes, 1, MSG_DONTWAIT) == 1)
        left++;
    say("left: %ld", left);
}

/* Of a piece whose end is not there no more is taken than what arrives. */
static void ends(struct pair pair, char *start)
{
    char *last = start + 3 * PAGE - PAGE - 4;
    NEED(mprotect(start, 2 * PAGE, PROT_READ | PROT_WRITE));
    SHOW(send(pair.client, "1234", 4, 0));
    wait_for(pair.server, 4);
    SHOW(recv(pair.server, last, PAGE, 0));
    show_bytes("at the end", last, 4);
    SHOW(send(pair.client, last, 8, 0));
    SHOW(send(pair.client, last, 4, 0));
    SHOW(recv(pair.server, last, 4, 0));
}

static sigjmp_buf out;
static volatile sig_atomic_t code;

static void leaves(int signal, siginfo_t *info, void *context)
{
    (void)context;
    code = info->si_code;
    siglongjmp(out, signal);
}

static void show_action(int signal)
{
    struct sigaction action;
    memset(&action, 0xff, sizeof action);
    NEED(sigaction(signal, NULL, &action));
    say("%s: %s, flags %x", sigabbrev_np(signal),
        action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "handled",
        (unsigned)action.sa_flags & ~0x04000000u);
}

static void own_faults(struct pair pair, char *none)
{
    struct sigaction action = {.sa_sigaction = leaves, .sa_flags = SA_SIGINFO};
    show_action(SIGSEGV);
    show_action(SIGBUS);
    SHOW(sigaction(SIGSEGV, &action, NULL));
    show_action(SIGSEGV);
    switch (sigsetjmp(out, 1)) {
    case 0:
        *(volatile char *)none = 1;
        say("it was written");
        break;
    case SIGSEGV:
        say("a fault of its own, code %d", (int)code);
    }
    SHOW(send(pair.client, none, 4, 0));
    SHOW(signal(SIGSEGV, SIG_DFL) == (void *)leaves);
    show_action(SIGSEGV);
    SHOW(send(pair.client, none, 4, 0));
    SHOW(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
    SHOW(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    SHOW(send(pair.client, none, 4, 0));
}

static void dies(const char *how, void (*run)(char *), char *none)
{
    struct pair pair = promoted();
    int status;
    pid_t child = NEED(fork());
    if (child == 0) {
        errno = 0;
        if (send(pair.client, none, 4, 0) != -1 || errno != EFAULT)
            _exit(1);
        run(none);
        _exit(0);
    }
    NEED(waitpid(child, &status, 0));
    say("%s: %s %d", how, WIFSIGNALED(status) ? "signal" : "status",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    close(pair.client);
    close(pair.server);
}

static void reads(char *none) { say("read %d", *(volatile char *)none); }
static void raises(char *none) { (void)none; raise(SIGSEGV); }
static void kills(char *none) { (void)none; kill(getpid(), SIGBUS); pause_ms(1000); }
static int overflows(int depth)
{
    volatile char room[PAGE];
    room[0] = depth;
    return overflows(depth + room[0]) + room[0];
}
static void deep(char *none) { say("%d", overflows(none == NULL)); }
static void aborts(char *none) { (void)none; abort(); }

int main(void)
{
    struct pair pair = promoted();
    char *start = pages(), *none = start + 2 * PAGE, *file = beyond_its_file();
    say("# not mapped");
    sends(pair, none);
    receives(pair, none);
    asks(pair, none);
    say("# beyond the end of its file");
    sends(pair, file);
    receives(pair, file);
    say("# to be read only");
    receives(pair, start + PAGE);
    beside(pair, none, start + PAGE);
    spilled();
    own_faults(pair, none);
    ends(pair, start);
    dies("reads", reads, none);
    dies("raises", raises, none);
    dies("kills", kills, none);
    dies("overflows its stack", deep, none);
    dies("aborts", aborts, none);
    return 0;
}
