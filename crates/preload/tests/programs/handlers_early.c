/* Handlers that were installed before the first TCP socket: read back as they were, they end waits, and bad pointers are EFAULT
 * beside one of SIGSEGV; also while a call looks for messages (spins: 1000000). */
#include "transcript.h"
#include <setjmp.h>
#include <sys/mman.h>

static volatile sig_atomic_t came, faults;
static sigjmp_buf back;
static struct pair pair;
static pthread_t waiter;

static void plain(int signal)
{
    came = signal;
}

static void informed(int signal, siginfo_t *info, void *context)
{
    came = info && context ? 100 + signal : 0;
}

static void faulted(int signal)
{
    faults++;
    siglongjmp(back, signal);
}

static void *signals(void *signal)
{
    pause_ms(100);
    pthread_kill(waiter, (int)(intptr_t)signal);
    pause_ms(50);
    send_all(pair.client, "bytes", 5);
    return NULL;
}

static void waits(int signal)
{
    char bytes[8];
    pthread_t thread;
    came = 0;
    pthread_create(&thread, NULL, signals, (void *)(intptr_t)signal);
    ssize_t count = SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    pthread_join(thread, NULL);
    say("came: %d", came);
    if (count < 0)
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
}

static void shows(int signal, const char *name)
{
    struct sigaction action;
    NEED(sigaction(signal, NULL, &action));
    void *handler = (void *)action.sa_handler;
    say("%s: %s, flags %x, masks SIGTERM %d", name,
        handler == (void *)plain      ? "plain"
        : handler == (void *)informed ? "informed"
        : handler == (void *)faulted  ? "faulted"
        : handler == (void *)SIG_IGN  ? "ignored"
        : handler == (void *)SIG_DFL  ? "default"
                                      : "another",
        action.sa_flags & ~0x04000000, sigismember(&action.sa_mask, SIGTERM));
}

int main(void)
{
    struct sigaction action = {.sa_handler = plain};
    NEED(sigaction(SIGUSR1, &action, NULL));
    sigaddset(&action.sa_mask, SIGTERM);
    action.sa_sigaction = informed;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    NEED(sigaction(SIGUSR2, &action, NULL));
    action = (struct sigaction){.sa_handler = plain, .sa_flags = SA_RESETHAND};
    NEED(sigaction(SIGHUP, &action, NULL));
    NEED(sigaction(SIGCONT, &(struct sigaction){.sa_handler = SIG_IGN}, NULL));
    action = (struct sigaction){.sa_handler = faulted};
    NEED(sigaction(SIGSEGV, &action, NULL));
    SHOW(signal(SIGWINCH, plain) == SIG_DFL);

    pair = promoted();
    waiter = pthread_self();
    for (int round = 0; round < 2; round++) {
        shows(SIGUSR1, "SIGUSR1");
        shows(SIGUSR2, "SIGUSR2");
        shows(SIGHUP, "SIGHUP");
        shows(SIGCONT, "SIGCONT");
        shows(SIGSEGV, "SIGSEGV");
        shows(SIGBUS, "SIGBUS");
        shows(SIGWINCH, "SIGWINCH");
        if (round == 0)
            raise(SIGHUP);
    }
    SHOW(came == SIGHUP);
    waits(SIGUSR1);
    waits(SIGUSR2);
    waits(SIGWINCH);
    SHOW(signal(SIGWINCH, SIG_DFL) == plain);

    char *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char bytes[4];
    SHOW(send(pair.client, "kept", 4, 0));
    wait_for(pair.server, 4);
    if (sigsetjmp(back, 1) == 0) {
        SHOW(recv(pair.server, bad, 4, 0));
        SHOW(send(pair.server, bad, 4, 0));
        SHOW(readv(pair.server, (struct iovec *)bad, 1));
    }
    SHOW(recv(pair.server, bytes, 4, 0));
    say("faults: %d", faults);
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)bad = 1;
    say("faults: %d", faults);
    return 0;
}
