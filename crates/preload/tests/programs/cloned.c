/* Forks by other names: forkpty(3), clone(2) without the memory, and both system calls by number.
 * The child goes on with the connection of its parent, which closes its own end of it. */
#include "transcript.h"
#include <linux/sched.h>
#include <pty.h>
#include <sched.h>

static struct pair pair;

/* What each child does: it answers on the connection, and one of its own. */
static int child(void *nothing)
{
    char bytes[16] = {0};
    close(pair.client);
    echo_all(pair.server, 20, 4);
    struct pair own = promoted();
    send_all(own.client, "own", 3);
    take_all(own.server, bytes, 3);
    send_all(pair.server, "bye", 3);
    _exit(nothing ? 3 : 0);
}

/* clone(2) into a stack of its own. */
static pid_t by_clone(void)
{
    static char stack[1 << 20] __attribute__((aligned(16)));
    return clone(child, stack + sizeof stack, SIGCHLD, NULL);
}

static pid_t by_number(void)
{
    return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static pid_t by_clone3(void)
{
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    return syscall(SYS_clone3, &arguments, sizeof arguments);
}

static int terminal = -1;

static pid_t by_forkpty(void)
{
    struct winsize size = {.ws_row = 10, .ws_col = 20};
    return forkpty(&terminal, NULL, NULL, &size);
}

static void forked(const char *name, pid_t (*by)(void))
{
    say("# %s", name);
    pair = promoted();
    pid_t process = NEED(by());
    if (process == 0)
        child(NULL);
    close(pair.server);
    char bytes[16] = {0};
    say("echo: %s", is_echoed(pair.client, 20, 4) ? "right" : "wrong");
    SHOW(recv(pair.client, bytes, 3, MSG_WAITALL));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    status_of(process);
    close(pair.client);
}

/* A child that has its parent's memory, and a copy of the descriptors: what it closes is its own. */
static int borrower(void *nothing)
{
    close(pair.server);
    close(pair.client);
    _exit(nothing ? 3 : 0);
}

int main(void)
{
    forked("clone", by_clone);
    forked("clone by its number", by_number);
    forked("clone3 by its number", by_clone3);
    forked("forkpty", by_forkpty);
    struct winsize size;
    SHOW(ioctl(terminal, TIOCGWINSZ, &size));
    say("%d lines with %d columns", size.ws_row, size.ws_col);
    say("# vfork by clone");
    static char stack[1 << 20] __attribute__((aligned(16)));
    pair = promoted();
    status_of(NEED(clone(borrower, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)));
    char bytes[16];
    SHOW(send(pair.client, "kept", 4, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    return 0;
}
