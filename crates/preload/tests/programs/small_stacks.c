/* How much of a stack each call takes, which is painted before: few bytes more than libc's own, so that handlers on small
 * alternate stacks can make it. Then they do. */
#include "transcript.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <ucontext.h>

/* Of a library with assertions; without them none takes more than 1536. */
enum { SIZE = 1 << 18, MORE = 2176 };
static unsigned char *stack;
static void *libc;
static bool is_libcs;
static struct pair pair;
static char bytes[1 << 16];
static int set, file, channel[2];

/* The function of a name as the program has it, or libc's own. */
#define CALL(name) ({ \
    static void *places[2]; \
    if (!places[is_libcs]) \
        places[is_libcs] = is_libcs ? dlsym(libc, #name) : (void *)name; \
    (__typeof__(name) *)places[is_libcs]; })

#define CALLS(X) \
    X(send, pair.client, bytes, 4, 0) \
    X(recv, pair.server, bytes, 4, MSG_PEEK) \
    X(recv, pair.server, bytes, 2, 0) \
    X(poll, &(struct pollfd){pair.server, POLLIN, 0}, 1, 0) \
    X(ppoll, &(struct pollfd){pair.server, POLLIN, 0}, 1, &(struct timespec){0, 0}, NULL) \
    X(select, pair.server + 1, readable(), NULL, NULL, &(struct timeval){0, 0}) \
    X(pselect, pair.server + 1, readable(), NULL, NULL, &(struct timespec){0, 0}, NULL) \
    X(epoll_wait, set, &(struct epoll_event){0}, 1, 0) \
    X(epoll_pwait, set, &(struct epoll_event){0}, 1, 0, NULL) \
    X(ioctl, pair.server, FIONREAD, bytes) \
    X(read, pair.server, bytes, 4) \
    X(read, pair.server, bytes, 4) \
    X(poll, &(struct pollfd){pair.server, POLLIN, 0}, 1, 5) \
    X(select, pair.server + 1, readable(), NULL, NULL, &(struct timeval){0, 5000}) \
    X(epoll_wait, set, &(struct epoll_event){0}, 1, 5) \
    X(write, pair.client, bytes, 4) \
    X(writev, pair.client, pieces(), 2) \
    X(sendmsg, pair.client, message(), 0) \
    X(sendto, pair.client, bytes, 4, 0, NULL, 0) \
    X(readv, pair.server, pieces(), 2) \
    X(recvfrom, pair.server, bytes, 4, 0, NULL, NULL) \
    X(recvmsg, pair.server, message(), 0) \
    X(epoll_ctl, set, EPOLL_CTL_MOD, pair.server, &(struct epoll_event){.events = EPOLLIN}) \
    X(setsockopt, pair.server, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) \
    X(fcntl, pair.server, F_SETFL, O_NONBLOCK) \
    X(sendfile, pair.client, file, &(off_t){0}, 4096) \
    X(splice, pair.server, NULL, channel[1], NULL, 4096, SPLICE_F_NONBLOCK) \
    X(splice, channel[0], NULL, pair.client, NULL, 4096, SPLICE_F_NONBLOCK) \
    X(send, pair.client, bytes, sizeof bytes, 0) \
    X(send, pair.client, bytes, sizeof bytes, 0) \
    X(send, pair.client, bytes, sizeof bytes, 0) \
    X(send, pair.client, bytes, sizeof bytes, 0) \
    X(send, pair.client, bytes, sizeof bytes, 0) \
    X(send, pair.client, bytes, sizeof bytes, 0) \
    X(recv, pair.server, bytes, sizeof bytes, 0) \
    X(dup, pair.server) \
    X(shutdown, pair.client, SHUT_WR)

static fd_set *readable(void)
{
    static fd_set one;
    FD_ZERO(&one);
    FD_SET(pair.server, &one);
    return &one;
}

static struct iovec *pieces(void)
{
    static struct iovec two[2];
    two[0] = (struct iovec){bytes, 1};
    two[1] = (struct iovec){bytes + 1, 1};
    return two;
}

static struct msghdr *message(void)
{
    static struct msghdr one;
    one = (struct msghdr){.msg_iov = pieces(), .msg_iovlen = 2};
    return &one;
}

static const char *const names[] = {
#define X(name, ...) #name,
    CALLS(X)
#undef X
};
enum { COUNT = sizeof names / sizeof names[0] };

static int chosen;

/* Its own frame is the same for both. */
static void calls(void)
{
    int at = 0;
#define X(name, ...) \
    if (chosen == at++) \
        (void)!CALL(name)(__VA_ARGS__);
    CALLS(X)
#undef X
}

static long depth(bool of_libc)
{
    static ucontext_t here, there;
    is_libcs = of_libc;
    memset(stack, 0xa5, SIZE);
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = SIZE;
    there.uc_link = &here;
    makecontext(&there, calls, 0);
    swapcontext(&here, &there);
    long untouched = 0;
    while (untouched < SIZE && stack[untouched] == 0xa5)
        untouched++;
    return SIZE - untouched;
}

static void handler(int signal)
{
    fd_set one;
    FD_ZERO(&one);
    FD_SET(pair.server, &one);
    struct timeval none = {0, 0};
    char text[4] = {signal};
    SHOW(send(pair.client, text, 4, 0));
    SHOW(select(pair.server + 1, &one, NULL, NULL, &none));
    SHOW(recv(pair.server, text, 4, 0));
}

/* More endpoints than withdrawals that can be noted. */
enum { MANY = 40 };
static struct pair many[MANY];

static void closer(int signal)
{
    for (int at = 0; at < MANY; at++) {
        close(many[at].client);
        close(many[at].server);
    }
    say("closed at %d", signal);
}

int main(void)
{
    libc = dlopen("libc.so.6", RTLD_NOW);
    stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char path[] = "/tmp/megapipe-small-XXXXXX";
    file = NEED(mkstemp(path));
    NEED(unlink(path));
    NEED(ftruncate(file, 4096));
    NEED(pipe(channel));
    pair = promoted();
    nonblocking(pair.server);
    nonblocking(pair.client);
    set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    for (chosen = 0; chosen < COUNT; chosen++) {
        /* The program's own function is bound, and libc's found, at the first call. */
        depth(true);
        long libcs = depth(true), first = depth(false), second = depth(false);
        long most = (first > second ? first : second) - libcs;
        if (most <= MORE)
            say("%s fits", names[chosen]);
        else
            say("%s takes %ld bytes more", names[chosen], most);
    }

    /* What the kernel needs for a handler, and 3 KiB. */
    pair = promoted();
    stack_t small = {.ss_sp = stack, .ss_size = sysconf(_SC_MINSIGSTKSZ) + 3072};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    NEED(sigaltstack(&small, NULL));
    NEED(sigaction(SIGUSR1, &action, NULL));
    for (int round = 0; round < 3; round++)
        SHOW(raise(SIGUSR1));
    for (int at = 0; at < MANY; at++)
        many[at] = promoted();
    action.sa_handler = closer;
    NEED(sigaction(SIGUSR1, &action, NULL));
    SHOW(raise(SIGUSR1));
    used(promoted());
    return 0;
}
