/* Small programs that have no TCP socket. usage: cases NUMBER; without a number: how many there are. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *bad;

/* A result, without what differs from run to run. */
static long shows(const char *call, long result)
{
    char line[256];
    int error = errno;
    int length = snprintf(line, sizeof line, "%s: %ld %s\n", call, result, result < 0 ? strerrorname_np(error) : "");
    if (write(STDOUT_FILENO, line, length) != length)
        _exit(9);
    errno = error;
    return result;
}
#define SHOW(call) shows(#call, (long)(call))

static void raw_select(void) { char set[128] = {0}; SHOW(syscall(SYS_pselect6, 1, set, 0, 0, bad, 0)); }
static void raw_select_mask(void)
{
    char set[128] = {0};
    struct timespec none = {0, 0};
    SHOW(syscall(SYS_pselect6, 1, set, 0, 0, &none, bad));
    SHOW(syscall(SYS_pselect6, 1, bad, 0, 0, &none, 0));
}
static void raw_ppoll(void)
{
    char entry[8] = {0};
    SHOW(syscall(SYS_ppoll, 0, 0, bad, 0, 8));
    SHOW(syscall(SYS_ppoll, bad, 1, 0, 0, 8));
    SHOW(syscall(SYS_ppoll, 0, 0, entry, bad, 8));
}
static void raw_clone(void)
{
    SHOW(syscall(SYS_clone3, bad, 64));
    SHOW(syscall(SYS_clone3, bad, 8));
    uint64_t arguments[8] = {[4] = SIGCHLD};
    long child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0)
        _exit(SHOW(getppid() > 0));
    int status;
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(status);
}
static void raw_epoll(void)
{
    struct timespec none = {0, 0};
    char events[64];
    int set = SHOW(epoll_create1(0));
    SHOW(syscall(SYS_epoll_pwait2, set, events, 1, bad, 0, 8));
    SHOW(syscall(SYS_epoll_pwait2, set, bad, 1, &none, 0, 8));
    SHOW(syscall(SYS_epoll_pwait, set, bad, 1, 0, 0, 8));
    SHOW(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, 0, bad));
}
static void raw_pairs(void)
{
    SHOW(pipe((int *)bad));
    SHOW(syscall(SYS_pipe2, bad, 0));
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)bad));
}
static void raw_exec(void)
{
    SHOW(syscall(SYS_execve, bad, bad, bad));
    SHOW(syscall(SYS_execveat, AT_FDCWD, "/bin/true", bad, bad, 0));
    SHOW(execve("/nowhere", (char *[]){"x", 0}, environ));
}
static void raw_messages(void)
{
    int fd = SHOW(socket(AF_UNIX, SOCK_DGRAM, 0));
    SHOW(syscall(SYS_sendmsg, fd, bad, 0));
    SHOW(syscall(SYS_sendmsg, fd, bad, MSG_FASTOPEN));
    SHOW(syscall(SYS_recvmsg, fd, bad, MSG_DONTWAIT));
    SHOW(syscall(SYS_recvmmsg, fd, bad, 1, MSG_DONTWAIT, bad));
    SHOW(syscall(SYS_sendmmsg, fd, bad, 1, 0));
    SHOW(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, bad, 4));
    SHOW(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, bad, bad));
    SHOW(syscall(SYS_accept, fd, bad, bad));
    SHOW(syscall(SYS_connect, fd, bad, 16));
}
static void raw_bytes(void)
{
    int pair[2];
    SHOW(pipe(pair));
    SHOW(syscall(SYS_write, pair[1], bad, 1));
    SHOW(syscall(SYS_write, pair[1], "x", 1));
    SHOW(syscall(SYS_read, pair[0], bad, 1));
    SHOW(syscall(SYS_readv, pair[0], bad, 1));
    SHOW(syscall(SYS_writev, pair[1], bad, 1));
    SHOW(syscall(SYS_splice, pair[0], bad, pair[1], 0, 1, 0));
    SHOW(sendfile(pair[1], 0, (void *)bad, 1));
    SHOW(syscall(SYS_ioctl, pair[0], FIONREAD, bad));
}
static void raw_signals(void)
{
    SHOW(syscall(SYS_rt_sigaction, SIGUSR1, bad, 0, 8));
    SHOW(prctl(PR_SET_NAME, bad));
}

static void files(void)
{
    char bytes[16];
    int fd = SHOW(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    SHOW(read(fd, bytes, sizeof bytes));
    SHOW(close(fd));
    SHOW(close(fd));
    SHOW(read(fd, bytes, sizeof bytes));
    fd = SHOW(open("/nowhere", O_RDONLY));
}
static void standard_input(void)
{
    char bytes[4];
    SHOW(read(STDIN_FILENO, bytes, sizeof bytes));
    SHOW(recv(STDIN_FILENO, bytes, sizeof bytes, 0));
    SHOW(write(STDERR_FILENO, "", 0));
}
static void streams(void)
{
    FILE *file = fopen("/dev/null", "r+");
    SHOW(fprintf(file, "text"));
    SHOW(fclose(file));
    SHOW(dprintf(STDOUT_FILENO, "%s\n", "printed"));
    file = tmpfile();
    SHOW(file != NULL);
    SHOW(fclose(file));
}
static void descriptors(void)
{
    int fd = SHOW(open("/dev/null", O_RDWR));
    SHOW(dup(fd));
    SHOW(dup2(fd, 20));
    SHOW(dup2(20, 21));
    SHOW(dup3(fd, 22, O_CLOEXEC));
    SHOW(dup2(-1, 23));
    SHOW(dup2(fd, fd));
    SHOW(fcntl(fd, F_DUPFD, 30));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(close_range(20, 25, 0));
    SHOW(close_range(3, 2, 0));
    closefrom(5);
    SHOW(fcntl(fd, F_GETFD));
}
static void pipes(void)
{
    int pair[2];
    char bytes[8];
    SHOW(pipe2(pair, O_NONBLOCK));
    SHOW(read(pair[0], bytes, 8));
    SHOW(write(pair[1], "bytes", 5));
    struct iovec two[2] = {{bytes, 2}, {bytes + 2, 6}};
    SHOW(readv(pair[0], two, 2));
    SHOW(splice(pair[0], NULL, pair[1], NULL, 1, SPLICE_F_NONBLOCK));
    SHOW(close(pair[0]));
    signal(SIGPIPE, SIG_IGN);
    SHOW(write(pair[1], "bytes", 5));
}
static void unix_stream(void)
{
    int pair[2];
    char bytes[8];
    SHOW(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    SHOW(recv(pair[0], bytes, 8, 0));
    SHOW(send(pair[1], "bytes", 5, MSG_NOSIGNAL));
    SHOW(recv(pair[0], bytes, 8, MSG_PEEK));
    int unread;
    SHOW(ioctl(pair[0], FIONREAD, &unread));
    SHOW(recv(pair[0], bytes, 8, MSG_DONTWAIT));
    SHOW(shutdown(pair[1], SHUT_WR));
    SHOW(recv(pair[0], bytes, 8, 0));
}
static void unix_listener(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int listener = SHOW(socket(AF_UNIX, SOCK_STREAM, 0));
    SHOW(bind(listener, (struct sockaddr *)&at, sizeof at.sun_family));
    SHOW(listen(listener, 4));
    socklen_t length = sizeof at;
    SHOW(getsockname(listener, (struct sockaddr *)&at, &length));
    int client = SHOW(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SHOW(connect(client, (struct sockaddr *)&at, length));
    int server = SHOW(accept(listener, NULL, NULL));
    SHOW(write(server, "x", 1));
    char byte;
    SHOW(read(client, &byte, 1));
    SHOW(fcntl(server, F_SETFL, O_NONBLOCK));
    SHOW(accept4(-1, NULL, NULL, 0));
}
static void passes_descriptor(void)
{
    int pair[2], fd = SHOW(open("/dev/null", O_RDWR));
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOW(sendmsg(pair[0], &message, 0));
}
static void datagrams(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = SHOW(socket(AF_INET, SOCK_DGRAM, 0));
    SHOW(bind(fd, (struct sockaddr *)&at, length));
    SHOW(getsockname(fd, (struct sockaddr *)&at, &length));
    SHOW(sendto(fd, "datagram", 8, 0, (struct sockaddr *)&at, length));
    char bytes[16];
    SHOW(recvfrom(fd, bytes, sizeof bytes, 0, NULL, NULL));
    struct iovec one = {bytes, sizeof bytes};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1}}};
    SHOW(recvmmsg(fd, messages, 1, MSG_DONTWAIT, NULL));
    messages[0].msg_hdr.msg_name = &at, messages[0].msg_hdr.msg_namelen = length;
    SHOW(sendmmsg(fd, messages, 1, 0));
    int on = 1;
    SHOW(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    SHOW(ioctl(fd, FIONBIO, &on));
    SHOW(connect(fd, (struct sockaddr *)&at, length));
}
static void polls(void)
{
    int pair[2];
    SHOW(pipe(pair));
    struct pollfd both[2] = {{pair[0], POLLIN, 0}, {pair[1], POLLOUT, 0}};
    struct timespec none = {0, 0};
    SHOW(poll(both, 2, 0));
    SHOW(ppoll(both, 1, &none, NULL));
    SHOW(poll(both, 1, 1));
    SHOW(poll((struct pollfd *)bad, 1, 0));
}
static void selects(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(STDOUT_FILENO, &set);
    struct timeval none = {0, 0};
    struct timespec nothing = {0, 0};
    SHOW(select(2, NULL, &set, NULL, &none));
    SHOW(pselect(2, NULL, &set, NULL, &nothing, NULL));
    SHOW(select(2, (fd_set *)bad, NULL, NULL, &none));
    SHOW(select(-1, NULL, NULL, NULL, &none));
}
static void epoll_sets(void)
{
    int set = SHOW(epoll_create1(EPOLL_CLOEXEC)), event = SHOW(eventfd(1, EFD_NONBLOCK));
    struct epoll_event what = {.events = EPOLLIN, .data.u64 = 1}, got[4];
    struct timespec none = {0, 0};
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, event, &what));
    SHOW(epoll_wait(set, got, 4, 0));
    SHOW(epoll_pwait(set, got, 4, 0, NULL));
    SHOW(epoll_pwait2(set, got, 4, &none, NULL));
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, event, &what));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, event, NULL));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, event, (struct epoll_event *)bad));
    SHOW(epoll_wait(set, got, 4, 1));
    SHOW(epoll_wait(set, got, 0, 0));
    SHOW(close(set));
    SHOW(epoll_create1(0));
}
static void sets_in_sets(void)
{
    int outer = SHOW(epoll_create1(0)), inner = SHOW(epoll_create(1)), event = SHOW(eventfd(0, 0));
    struct epoll_event what = {.events = EPOLLIN | EPOLLET}, got;
    SHOW(epoll_ctl(inner, EPOLL_CTL_ADD, event, &what));
    SHOW(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &what));
    uint64_t one = 1;
    SHOW(write(event, &one, sizeof one));
    SHOW(epoll_wait(outer, &got, 1, 0));
    struct pollfd set = {outer, POLLIN, 0};
    SHOW(poll(&set, 1, 0));
    SHOW(close(outer));
    SHOW(close(inner));
}
static void many_sets(void)
{
    for (int round = 0; round < 100; round++) {
        int set = epoll_create1(0);
        struct epoll_event what = {.events = EPOLLOUT};
        if (epoll_ctl(set, EPOLL_CTL_ADD, STDIN_FILENO, &what) == 0)
            shows("added", 0);
        close(set);
    }
}
static void watchers(void)
{
    struct itimerspec soon = {{0, 0}, {0, 1000000}};
    uint64_t times;
    int timer = SHOW(timerfd_create(CLOCK_MONOTONIC, 0));
    SHOW(timerfd_settime(timer, 0, &soon, NULL));
    SHOW(read(timer, &times, sizeof times));
    SHOW(inotify_init1(IN_NONBLOCK));
    SHOW(memfd_create("memory", 0));
}

static volatile sig_atomic_t handled;
static void handler(int signal) { handled = signal; }
static void handler_with_all(int signal, siginfo_t *info, void *context) { handled = signal + (info && context ? 100 : 0); }
static void signals(void)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    SHOW(sigaction(SIGUSR1, &action, NULL));
    SHOW(sigaction(SIGUSR1, NULL, &old));
    SHOW(old.sa_handler == handler && old.sa_flags == SA_RESTART);
    SHOW(raise(SIGUSR1));
    SHOW(handled);
    action = (struct sigaction){.sa_sigaction = handler_with_all, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    SHOW(sigaction(SIGUSR2, &action, &old));
    SHOW(raise(SIGUSR2));
    SHOW(handled);
    SHOW(sigaction(SIGUSR2, NULL, &old));
    SHOW(old.sa_handler == SIG_DFL);
    SHOW(sigaction(SIGKILL, &action, NULL));
    SHOW(sigaction(65, &action, NULL));
    SHOW(signal(SIGHUP, handler) == SIG_DFL);
    SHOW(signal(SIGHUP, SIG_IGN) == handler);
    SHOW(sysv_signal(SIGHUP, handler) == SIG_IGN);
    SHOW(sigaction(SIGSEGV, NULL, &old));
    SHOW(old.sa_handler == SIG_DFL && old.sa_flags == 0);
}
static sigjmp_buf back;
static void leaves(int signal) { siglongjmp(back, signal); }
static void fault(void)
{
    signal(SIGSEGV, leaves);
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)bad = 1;
    shows("came back", 1);
}
static void dies_of_fault(void)
{
    pid_t child = fork();
    if (child == 0)
        *(volatile char *)bad = 1;
    int status;
    waitpid(child, &status, 0);
    SHOW(WTERMSIG(status));
}
static void interrupted(void)
{
    struct sigaction action = {.sa_handler = handler};
    int pair[2];
    char byte;
    SHOW(sigaction(SIGALRM, &action, NULL));
    SHOW(pipe(pair));
    SHOW(ualarm(20000, 0));
    SHOW(read(pair[0], &byte, 1));
    SHOW(ualarm(20000, 0));
    SHOW(epoll_wait(epoll_create1(0), &(struct epoll_event){0}, 1, -1));
}

/* Another thread may protect a handler's stack once the kernel has written the signal's frame there. */
static void protected_stack(void)
{
    static char stack[1 << 16] __attribute__((aligned(65536)));
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    SHOW(sigaltstack(&other, NULL));
    SHOW(sigaction(SIGHUP, &action, NULL));
    for (int round = 0; round < 2; round++)
        if (raise(SIGHUP) || handled != SIGHUP)
            _exit(8);
    memset(stack, 0x5a, sizeof stack);
    SHOW(raise(SIGHUP));
    size_t untouched = 0;
    while (untouched < sizeof stack && stack[untouched] == 0x5a)
        untouched++;
    /* The frame of a signal, whose size is the processor's, and a handler of some words. */
    SHOW(sizeof stack - untouched < 20000);
    SHOW(untouched / 64);
}
static void forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        SHOW(close(epoll_create1(0)));
        exit(3);
    }
    int status;
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(WEXITSTATUS(status));
    child = _Fork();
    if (child == 0)
        _exit(4);
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(WEXITSTATUS(status));
}
static void vforks(void)
{
    int set = SHOW(epoll_create1(0)), status;
    struct epoll_event what = {.events = EPOLLIN}, got;
    for (int round = 0; round < 2; round++) {
        pid_t child = vfork();
        if (child == 0) {
            dup2(STDOUT_FILENO, 40);
            execl("/bin/true", "true", NULL);
            _exit(5);
        }
        SHOW(waitpid(child, &status, 0) == child);
        SHOW(status);
    }
    SHOW(open("/dev/null", O_RDONLY));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, eventfd(1, 0), &what));
    SHOW(epoll_wait(set, &got, 1, 0));
}
static void vfork_fails(void)
{
    pid_t child = vfork();
    if (child == 0) {
        execve("/nowhere", (char *[]){"x", 0}, environ);
        _exit(6);
    }
    int status;
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(WEXITSTATUS(status));
}
static void spawns(void)
{
    char *arguments[] = {"true", NULL};
    pid_t child;
    int status;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    SHOW(posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, 9));
    SHOW(posix_spawn(&child, "/bin/true", &actions, NULL, arguments, environ));
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(posix_spawnp(&child, "true", NULL, NULL, arguments, environ));
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(posix_spawn(&child, "/nowhere", NULL, NULL, arguments, environ));
}
static void shell(void)
{
    SHOW(system(NULL));
    SHOW(system("exit 3"));
    FILE *stream = popen("echo said", "r");
    char text[16] = "";
    SHOW(fread(text, 1, 5, stream));
    SHOW(pclose(stream));
}
static void executes(void) { execl("/bin/true", "true", NULL); }
static int begins(void *argument) { return *(int *)argument; }
static void clones(void)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    int seven = 7, status;
    pid_t child = clone(begins, stack + sizeof stack, SIGCHLD, &seven);
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(WEXITSTATUS(status));
    child = clone(begins, stack + sizeof stack, CLONE_VM | SIGCHLD, &seven);
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(close(dup(0)));
}
static void terminal(void)
{
    int main_end = -1;
    pid_t child = forkpty(&main_end, NULL, NULL, NULL);
    if (child == 0)
        _exit(2);
    int status;
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(close(main_end));
}
static void becomes_daemon(void)
{
    SHOW(daemon(1, 1));
    SHOW(write(STDOUT_FILENO, "", 0));
}
static void *thread(void *set)
{
    struct epoll_event got;
    SHOW(epoll_wait(*(int *)set, &got, 1, -1));
    SHOW(close(dup(0)));
    return NULL;
}
static void threads(void)
{
    int set = SHOW(epoll_create1(0)), event = SHOW(eventfd(0, 0));
    struct epoll_event what = {.events = EPOLLIN};
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, event, &what));
    pthread_t id;
    pthread_create(&id, NULL, thread, &set);
    usleep(20000);
    uint64_t one = 1;
    long written = write(event, &one, sizeof one);
    pthread_join(id, NULL);
    SHOW(written);
}
static void thread_waits_badly(void)
{
    pthread_t id;
    int set = epoll_create1(0), event = eventfd(0, 0);
    struct epoll_event what = {.events = EPOLLIN}, got;
    epoll_ctl(set, EPOLL_CTL_ADD, event, &what);
    pthread_create(&id, NULL, thread, &set);
    usleep(20000);
    SHOW(epoll_wait(set, (struct epoll_event *)bad, 1, 0));
    SHOW(epoll_wait(set, (struct epoll_event *)bad, 1, 1));
    uint64_t one = 1;
    long written = write(event, &one, sizeof one);
    pthread_join(id, NULL);
    SHOW(written);
    SHOW(epoll_wait(set, (struct epoll_event *)bad, 1, -1));
    SHOW(epoll_wait(set, &got, 1, -1));
}
static void locks_itself(void)
{
    SHOW(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SHOW(syscall(SYS_seccomp, 0, 0, 0));
    SHOW(setuid(getuid()));
    SHOW(ioctl(0, TIOCGWINSZ, bad));
}
static void strict(void)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_SECCOMP, 1);
        SHOW(write(STDOUT_FILENO, "", 0));
        syscall(SYS_exit, 0);
    }
    int status;
    SHOW(waitpid(child, &status, 0) == child);
    SHOW(status);
}
static void other_protocols(void)
{
    SHOW(socket(AF_INET, SOCK_RAW | 4096, 255));
    SHOW(socket(AF_INET, SOCK_STREAM, 999));
    SHOW(socket(AF_NETLINK, SOCK_RAW, 0));
    SHOW(socket(12345, SOCK_STREAM, 0));
}
static void lasts(void)
{
    atexit((void (*)(void))getppid);
    exit(11);
}
static void quick(void) { _exit(12); }
static void very_quick(void) { syscall(SYS_exit_group, 13); }
static void of_old(void)
{
#ifdef SYS_select
    char set[128] = {0};
    struct timeval none = {0, 0};
    int pair[2];
    SHOW(syscall(SYS_select, 1, set, 0, 0, bad));
    SHOW(syscall(SYS_select, 1, bad, 0, 0, 0));
    SHOW(syscall(SYS_select, 1, set, 0, 0, &none));
    SHOW(syscall(SYS_poll, bad, 1, 0));
    SHOW(syscall(SYS_pipe, pair));
    SHOW(syscall(SYS_dup2, pair[0], 30));
    SHOW(syscall(SYS_epoll_wait, syscall(SYS_epoll_create, 1), bad, 1, 0));
    SHOW(syscall(SYS_open, "/dev/null", 0));
#endif
}
static void raw_common(void)
{
    char bytes[8];
    struct timespec none = {0, 0};
    int fd = SHOW(syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY));
    SHOW(syscall(SYS_read, fd, bytes, 8));
    SHOW(syscall(SYS_fcntl, fd, F_DUPFD, 20));
    SHOW(syscall(SYS_dup3, fd, 21, 0));
    SHOW(syscall(SYS_ppoll, &(struct pollfd){fd, POLLIN, 0}, 1, &none, 0, 8));
    SHOW(syscall(SYS_pselect6, 0, 0, 0, 0, &none, 0));
    SHOW(syscall(SYS_close_range, 20, 30, 0));
    SHOW(syscall(SYS_close, fd));
    SHOW(syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
    SHOW(syscall(SYS_getpid) == getpid());
    SHOW(syscall(9999));
}

static void directories(void)
{
    DIR *directory = opendir("/proc/self/task");
    int count = 0;
    while (readdir(directory))
        count++;
    SHOW(count);
    SHOW(closedir(directory));
    directory = fdopendir(SHOW(open("/proc/self/task", O_RDONLY | O_DIRECTORY)));
    SHOW(closedir(directory));
}
static void mapped(void)
{
    int fd = SHOW(memfd_create("memory", MFD_CLOEXEC));
    SHOW(ftruncate(fd, 4096));
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory[0] = 'm';
    char byte;
    SHOW(pread(fd, &byte, 1, 0));
    SHOW(byte);
    SHOW(munmap(memory, 4096));
}
static void sends_a_file(void)
{
    int pair[2], fd = SHOW(memfd_create("memory", 0));
    SHOW(write(fd, "text", 4));
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    off_t from = 0;
    SHOW(sendfile(pair[0], fd, &from, 4));
    char text[4];
    SHOW(read(pair[1], text, 4));
    SHOW(copy_file_range(fd, NULL, pair[0], NULL, 4, 0));
}
static void asynchronous(void)
{
    char text[4] = "text";
    int fd = SHOW(memfd_create("memory", 0));
    struct aiocb block = {.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 4}, *list[] = {&block};
    block.aio_lio_opcode = LIO_NOP;
    SHOW(lio_listio(LIO_WAIT, list, 1, NULL));
    uint64_t value;
    int event = SHOW(eventfd(3, 0));
    SHOW(eventfd_read(event, &value));
    SHOW(eventfd_write(event, value));
    void *frames[] = {NULL};
    backtrace_symbols_fd(frames, 1, STDOUT_FILENO);
}
static void waits_for_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    SHOW(sigprocmask(SIG_BLOCK, &set, NULL));
    int fd = SHOW(signalfd(-1, &set, SFD_NONBLOCK));
    SHOW(raise(SIGUSR1));
    struct signalfd_siginfo info;
    SHOW(read(fd, &info, sizeof info));
    SHOW(sigqueue(getpid(), SIGUSR1, (union sigval){1}));
    SHOW(sigwaitinfo(&set, NULL));
}
static void names(void)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    SHOW(getaddrinfo("127.0.0.1", "80", &hints, &found));
    freeaddrinfo(found);
    SHOW(isatty(STDIN_FILENO));
    SHOW(ptsname(STDIN_FILENO) == NULL);
}
static void limits(void)
{
    struct rlimit limit;
    SHOW(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = 3;
    SHOW(setrlimit(RLIMIT_NOFILE, &limit));
    SHOW(dup(0));
    SHOW(socket(AF_UNIX, SOCK_STREAM, 0));
    SHOW(epoll_create1(0));
    SHOW(fcntl(0, F_DUPFD, 10));
}
static void signals_of_files(void)
{
    int pair[2];
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOW(signal(SIGIO, handler) == SIG_DFL);
    SHOW(fcntl(pair[0], F_SETOWN, getpid()));
    SHOW(fcntl(pair[0], F_SETFL, O_ASYNC | O_NONBLOCK));
    SHOW(write(pair[1], "x", 1));
    SHOW(handled == SIGIO);
}
static pid_t reader;
static void *cancelled(void *pair)
{
    char byte;
    __atomic_store_n(&reader, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    return (void *)read(*(int *)pair, &byte, 1);
}
/* Until that thread sleeps in read(2), for 10 s at most. How often it is asked for is not logged. */
static void until_it_reads(void)
{
    getpgid(-8);
    for (int look = 0, reads = 0; look < 10000 && !reads; look++, usleep(1000)) {
        char name[64], call[16] = "", *files[] = {"stat", "syscall"}, states[2] = "";
        pid_t id = __atomic_load_n(&reader, __ATOMIC_ACQUIRE);
        for (int at = 0; id && at < 2; at++) {
            snprintf(name, sizeof name, "/proc/self/task/%d/%s", id, files[at]);
            FILE *file = fopen(name, "r");
            if (!file || fscanf(file, at ? "%15s" : "%*d (%*[^)]) %1s", at ? call : states) != 1)
                exit(3);
            fclose(file);
        }
        reads = states[0] == 'S' && call[0] != 'r' && atoi(call) == SYS_read;
        if (look == 9999)
            exit(3);
    }
    getpgid(-7);
}
static void cancels(void)
{
    int pair[2];
    SHOW(pipe(pair));
    pthread_t id;
    pthread_create(&id, NULL, cancelled, pair);
    until_it_reads();
    pthread_cancel(id);
    void *result;
    pthread_join(id, &result);
    SHOW(result == PTHREAD_CANCELED);
}
static void *has_its_own(void *unused)
{
    unshare(CLONE_FILES);
    close(STDIN_FILENO);
    return unused;
}
static void parts(void)
{
    pthread_t id;
    pthread_create(&id, NULL, has_its_own, NULL);
    pthread_join(id, NULL);
    SHOW(fcntl(STDIN_FILENO, F_GETFD));
    SHOW(unshare(CLONE_FILES));
}
static void loads(void)
{
    void *library = dlopen("libutil.so.1", RTLD_NOW);
    SHOW(library != NULL);
    SHOW(dlsym(RTLD_DEFAULT, "recv") != NULL);
}
static void ring(void)
{
    char parameters[120] = {0};
    SHOW(syscall(SYS_io_uring_setup, 0, parameters));
    SHOW(syscall(SYS_io_uring_setup, 1, bad));
    SHOW(syscall(SYS_pidfd_getfd, -1, 0, 0));
}

#define CASES(X) \
    X(raw_select) X(raw_select_mask) X(raw_ppoll) X(raw_clone) X(raw_epoll) X(raw_pairs) X(raw_exec) X(raw_messages) \
    X(raw_bytes) X(raw_signals) X(files) X(standard_input) X(streams) X(descriptors) X(pipes) X(unix_stream) \
    X(unix_listener) X(passes_descriptor) X(datagrams) X(polls) X(selects) X(epoll_sets) X(sets_in_sets) X(many_sets) \
    X(watchers) X(signals) X(fault) X(dies_of_fault) X(interrupted) X(protected_stack) X(forks) X(vforks) X(vfork_fails) \
    X(spawns) X(shell) X(executes) X(clones) X(terminal) X(becomes_daemon) X(threads) X(thread_waits_badly) \
    X(locks_itself) X(strict) X(other_protocols) X(lasts) X(quick) X(very_quick) X(of_old) X(raw_common) \
    X(directories) X(mapped) X(sends_a_file) X(asynchronous) X(waits_for_signals) X(names) X(limits) X(signals_of_files) \
    X(cancels) X(parts) X(loads) X(ring)

static const struct { const char *name; void (*run)(void); } cases[] = {
#define X(name) {#name, name},
    CASES(X)
};

int main(int count, char **arguments)
{
    size_t chosen = count > 1 ? strtoul(arguments[1], NULL, 10) : sizeof cases;
    if (chosen >= sizeof cases / sizeof cases[0]) {
        printf("%zu\n", sizeof cases / sizeof cases[0]);
        return 0;
    }
    /* The first allocation finds out how; threads are cancelled by libgcc, which the library has loaded already. */
    dlopen("libgcc_s.so.1", RTLD_NOW);
    void *volatile first = malloc(1);
    free(first);
    bad = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (getpgid(-7) != -1)
        return 1;
    shows(cases[chosen].name, chosen);
    cases[chosen].run();
    return 0;
}
