/* Handlers that one thread installs while another makes the process's first TCP socket: each is the one that was installed
 * last. */
#include "transcript.h"

enum { CHILDREN = 300, FIRST = 36, LAST = 60 };

static pthread_barrier_t both;

static void before(int signal) { (void)signal; }
static void after(int signal) { (void)signal; }

static void *installs(void *unused)
{
    struct sigaction action = {.sa_handler = after, .sa_flags = SA_RESTART};
    pthread_barrier_wait(&both);
    for (int signal = LAST; signal >= FIRST; signal--)
        NEED(sigaction(signal, &action, NULL));
    return unused;
}

/* How many are not what they were to be. */
static int lost(void)
{
    struct sigaction action = {.sa_handler = before};
    for (int signal = FIRST; signal <= LAST; signal++)
        NEED(sigaction(signal, &action, NULL));
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, installs, NULL);
    pthread_barrier_wait(&both);
    NEED(socket(AF_INET, SOCK_STREAM, 0));
    pthread_join(thread, NULL);
    int count = 0;
    for (int signal = FIRST; signal <= LAST; signal++) {
        NEED(sigaction(signal, NULL, &action));
        count += action.sa_handler != after || !(action.sa_flags & SA_RESTART);
    }
    return count;
}

int main(void)
{
    int all = 0;
    for (int round = 0; round < CHILDREN; round++) {
        pid_t child = NEED(fork());
        if (child == 0)
            _exit(lost());
        int status;
        NEED(waitpid(child, &status, 0));
        all += WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
    }
    say("lost: %d", all);
    used(promoted());
    return 0;
}
