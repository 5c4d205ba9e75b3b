/* A thread puts files at numbers of the library's own descriptors while another makes connections,
 * and so has the library open others. A handler of fork(2) does so, too. */
#include "transcript.h"
#include <sys/resource.h>

static volatile bool over;
static int failed;

static void replace_all(void)
{
    for (int number = FIRST_HIDDEN; number < FIRST_HIDDEN + 6; number++) {
        failed += dup2(STDIN_FILENO, number) != number;
        failed += close(number) != 0;
    }
}

static void *connects(void *unused)
{
    while (!over) {
        struct pair pair = connected();
        ping(pair);
        close(pair.client);
        close(pair.server);
    }
    return unused;
}

int main(void)
{
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    struct pair pair = promoted();
    NEED(-pthread_atfork(replace_all, replace_all, replace_all));
    pid_t child = NEED(fork());
    if (child == 0)
        _exit(failed);
    status_of(child);
    SHOW(failed);
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, connects, NULL));
    for (int round = 0; round < 500; round++) {
        replace_all();
        usleep(50);
    }
    over = true;
    NEED(-pthread_join(thread, NULL));
    SHOW(failed);
    used(pair);
    return 0;
}
