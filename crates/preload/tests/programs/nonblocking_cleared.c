/* A socket whose reads did not block, until another process or thread that has it cleared O_NONBLOCK: the next read waits. */
#include "transcript.h"
#include <spawn.h>

extern char **environ;

enum { READS = 3 };

static pid_t reader;

static void clear(int fd)
{
    NEED(fcntl(fd, F_SETFL, NEED(fcntl(fd, F_GETFL)) & ~O_NONBLOCK));
}

static void await(pid_t child)
{
    int status;
    NEED(waitpid(child, &status, 0));
    if (status != 0)
        fail("the child");
}

static void by_fork(int fd)
{
    pid_t child = NEED(fork());
    if (child == 0) {
        clear(fd);
        _exit(0);
    }
    await(child);
}

static void by_spawn(int fd)
{
    char number[16], *arguments[] = {"self", number, NULL};
    snprintf(number, sizeof number, "%d", fd);
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0)
        fail("posix_spawn");
    await(child);
}

static void by_vfork(int fd)
{
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    pid_t child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", "self", number, NULL);
        _exit(1);
    }
    await(NEED(child));
}

static void by_message(int fd)
{
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t child = NEED(fork());
    if (child == 0) {
        clear(take_fd(channel[1]));
        _exit(0);
    }
    give_fd(channel[0], fd);
    await(child);
    close(channel[0]);
    close(channel[1]);
}

static void by_number(int fd)
{
    int copy = NEED(dup(fd));
    NEED(syscall(SYS_fcntl, copy, F_SETFL, NEED(fcntl(fd, F_GETFL)) & ~O_NONBLOCK));
    close(copy);
}

static void by_ioctl(int fd)
{
    int off = 0;
    NEED(syscall(SYS_ioctl, fd, FIONBIO, &off));
}

static void *clears(void *fd)
{
    clear(*(int *)fd);
    return NULL;
}

static void by_thread(int fd)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, clears, &fd) || pthread_join(thread, NULL))
        fail("a thread");
}

static void *sends(void *fd)
{
    until_asleep(&reader);
    send_all(*(int *)fd, "y", 1);
    return NULL;
}

static void try(const char *how, void (*clears_it)(int))
{
    struct pair pair = promoted();
    char byte;
    pthread_t thread;
    nonblocking(pair.server);
    for (int count = 0; count < READS; count++) {
        send_all(pair.client, "x", 1);
        wait_for(pair.server, 1);
        take_all(pair.server, &byte, 1);
        if (read(pair.server, &byte, 1) != -1 || errno != EAGAIN)
            fail("a read of nothing");
    }
    clears_it(pair.server);
    if (pthread_create(&thread, NULL, sends, &pair.client))
        fail("a thread");
    say("%s", how);
    SHOW(read(pair.server, &byte, 1));
    pthread_join(thread, NULL);
    close(pair.client);
    close(pair.server);
}

int main(int count, char **arguments)
{
    if (count > 1) {
        clear(atoi(arguments[1]));
        return 0;
    }
    reader = getpid();
    try("fork", by_fork);
    try("posix_spawn", by_spawn);
    try("vfork", by_vfork);
    try("a message", by_message);
    try("fcntl by its number, of a copy", by_number);
    try("ioctl by its number", by_ioctl);
    try("a thread", by_thread);
    return 0;
}
