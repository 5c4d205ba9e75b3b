/* Handlers of signals: what was installed is told as it was, they use the connection that they interrupt a call
 * on, and leave calls for good.
 */
#include "transcript.h"
#include <setjmp.h>

#define TIMES 3000

static struct pair pair;
static volatile sig_atomic_t came, strange, writes;
static sigjmp_buf out;

static void noted(int signal)
{
    (void)signal;
    came++;
}

static void other(int signal)
{
    (void)signal;
}

static void informed(int signal, siginfo_t *info, void *context)
{
    (void)context;
    came++;
    if (signal != SIGRTMIN + 1 || info->si_code != SI_TIMER || info->si_value.sival_int != 42)
        strange++;
    if (writes && write(pair.client, "!", 1) != 1)
        strange++;
}

static void leaves(int signal)
{
    (void)signal;
    came++;
    siglongjmp(out, 1);
}

static const char *name(void *handler)
{
    return handler == SIG_DFL             ? "default"
           : handler == SIG_IGN           ? "ignored"
           : handler == (void *)noted     ? "noted"
           : handler == (void *)other     ? "other"
           : handler == (void *)informed  ? "informed"
           : handler == SIG_ERR           ? "error"
                                          : "something else";
}

static void show_action(const char *what, int signal)
{
    struct sigaction is;
    NEED(sigaction(signal, NULL, &is));
    say("%s: %s, flags %x, masks SIGHUP %d", what, name((void *)is.sa_handler), is.sa_flags & ~0x04000000,
        sigismember(&is.sa_mask, SIGHUP));
}

static void told(void)
{
    struct sigaction action = {.sa_handler = noted, .sa_flags = SA_RESTART}, before;
    sigaddset(&action.sa_mask, SIGHUP);
    show_action("at first", SIGUSR1);
    SHOW(sigaction(SIGUSR1, &action, &before));
    say("before: %s", name((void *)before.sa_handler));
    show_action("installed", SIGUSR1);
    action = (struct sigaction){.sa_handler = other};
    SHOW(sigaction(SIGUSR1, &action, &action));
    say("in the same place: %s, flags %x", name((void *)action.sa_handler), action.sa_flags & ~0x04000000);
    say("signal: %s", name((void *)signal(SIGUSR1, noted)));
    show_action("by signal", SIGUSR1);
    siginterrupt(SIGUSR1, 1);
    show_action("interrupting", SIGUSR1);
    say("ignored after: %s", name((void *)signal(SIGUSR1, SIG_IGN)));
    show_action("ignored", SIGUSR1);
    say("default after: %s", name((void *)signal(SIGUSR1, SIG_DFL)));
    say("noted after: %s", name((void *)signal(SIGUSR1, noted)));
    raise(SIGUSR1);
    raise(SIGUSR1);
    say("came: %d", came);
    action = (struct sigaction){.sa_handler = noted, .sa_flags = SA_RESETHAND};
    SHOW(sigaction(SIGUSR2, &action, NULL));
    raise(SIGUSR2);
    show_action("used once", SIGUSR2);
    say("came: %d", came);
    SHOW(sigaction(SIGKILL, &action, NULL));
    SHOW(sigaction(0, &action, NULL));
    SHOW(sigaction(65, &action, NULL));
    SHOW(sigaction(-1, NULL, &action));
    say("signal 65: %s %s", name((void *)signal(65, noted)), strerrorname_np(errno));

    /* The child of a vfork(2) has handlers of its own, and this process's memory. */
    pid_t child = vfork();
    if (child == 0) {
        signal(SIGUSR1, SIG_DFL);
        struct sigaction in_child = {.sa_handler = other};
        sigaction(SIGHUP, &in_child, NULL);
        _exit(0);
    }
    NEED(waitpid(child, NULL, 0));
    show_action("after a vfork", SIGUSR1);
    show_action("not handled here", SIGHUP);
    raise(SIGUSR1);
    say("came: %d", came);
}

static timer_t begin(int signal, long nanoseconds)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal, .sigev_value.sival_int = 42};
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec times = {.it_value.tv_nsec = nanoseconds, .it_interval.tv_nsec = nanoseconds};
    NEED(timer_settime(timer, 0, &times, NULL));
    return timer;
}

static void *echo(void *unused)
{
    (void)unused;
    char bytes[512];
    ssize_t took;
    /* Dots come back; what handlers wrote is counted. */
    long marks = 0;
    while ((took = recv(pair.server, bytes, sizeof bytes, 0)) > 0) {
        ssize_t dots = 0;
        for (ssize_t at = 0; at < took; at++)
            if (bytes[at] == '.')
                dots++;
            else
                marks++;
        memset(bytes, '.', dots);
        send_all(pair.server, bytes, dots);
    }
    return (void *)marks;
}

static pthread_t apart(void *(*run)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

static void used_in_a_handler(void)
{
    pair = promoted();
    pthread_t thread = apart(echo);
    struct sigaction action = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO | SA_RESTART};
    NEED(sigaction(SIGRTMIN + 1, &action, NULL));
    came = 0;
    writes = 1;
    timer_t timer = begin(SIGRTMIN + 1, 50000);
    char bytes[8];
    while (came < TIMES) {
        send_all(pair.client, "........", 8);
        take_all(pair.client, bytes, 8);
    }
    timer_delete(timer);
    long written = came;
    shutdown(pair.client, SHUT_WR);
    void *marks;
    pthread_join(thread, &marks);
    say("of handlers: %s", (long)marks == written ? "all came" : "some are missing");
    say("strange: %d", strange);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    say("stays blocked: %d", sigismember(&blocked, SIGRTMIN + 1));
}

static void left_for_good(void)
{
    pair = promoted();
    struct sigaction action = {.sa_handler = leaves};
    NEED(sigaction(SIGRTMIN + 2, &action, NULL));
    char bytes[8];
    /* Of the main thread, which this is: jumps end before the timer does. */
    came = 0;
    static timer_t timer;
    if (sigsetjmp(out, 1) == 0) {
        /* There is a place to jump to, and the timer is known, before it runs out. */
        sigset_t late;
        sigemptyset(&late);
        sigaddset(&late, SIGRTMIN + 2);
        sigprocmask(SIG_BLOCK, &late, NULL);
        timer = begin(SIGRTMIN + 2, 50000);
        sigprocmask(SIG_UNBLOCK, &late, NULL);
    }
    if (came < TIMES)
        for (;;)
            recv(pair.client, bytes, sizeof bytes, MSG_DONTWAIT);
    signal(SIGRTMIN + 2, SIG_IGN);
    timer_delete(timer);
    send_all(pair.server, "still", 5);
    take_all(pair.client, bytes, 5);
    show_bytes("after jumps", bytes, 5);
    send_all(pair.client, "there", 5);
    take_all(pair.server, bytes, 5);
    show_bytes("and back", bytes, 5);
}

int main(void)
{
    told();
    used_in_a_handler();
    left_for_good();
    return 0;
}
