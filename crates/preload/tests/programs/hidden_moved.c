/* Files of the program's at numbers of the library's own descriptors, whatever these are for: all go on as before, and sleeping
 * ends are still woken by their doorbells. */
#include "woken.h"

#include <sys/resource.h>

enum { LOWEST = FIRST_HIDDEN, NUMBERS = 16 };

static void limit(rlim_t files)
{
    struct rlimit now;
    NEED(getrlimit(RLIMIT_NOFILE, &now));
    now.rlim_cur = files;
    NEED(setrlimit(RLIMIT_NOFILE, &now));
}

/* Those that an executed program would get. */
static int inherited(void)
{
    int count = 0;
    for (int number = LOWEST; number < LOWEST + 4 * NUMBERS; number++)
        count += fcntl(number, F_GETFD) == 0;
    return count;
}

static void all(enum way way, rlim_t most)
{
    int ends[2];
    struct stat own, there;
    NEED(pipe2(ends, O_CLOEXEC));
    NEED(fstat(ends[0], &own));
    pair = promoted();
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, answers, NULL));
    struct epoll_event event = {.events = EPOLLIN};
    if (way == IN_SET)
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, pair.client, &event));
    exchange(way);

    say("# calls that fail");
    SHOW(dup3(STDIN_FILENO, LOWEST, ~O_CLOEXEC));
    SHOW(dup2(LOWEST - 1, LOWEST));
    limit(LOWEST);
    for (int number = LOWEST; number < LOWEST + NUMBERS; number++)
        SHOW(dup2(ends[0], number));
    limit(most);
    exchange(way);

    say("# one by one");
    for (int number = LOWEST; number < LOWEST + NUMBERS; number++) {
        SHOW(number % 2 ? dup2(ends[0], number) : dup3(ends[0], number, O_CLOEXEC));
        exchange(way);
    }
    int there_still = 0;
    for (int number = LOWEST; number < LOWEST + NUMBERS; number++)
        there_still += fstat(number, &there) == 0 && there.st_ino == own.st_ino;
    SHOW(there_still);
    SHOW(inherited());
    used(promoted());

    say("# and closed");
    SHOW(close_range(LOWEST, ~0U, 0));
    exchange(way);
    used(promoted());
    SHOW(inherited());

    char byte = LAST;
    send_all(pair.client, &byte, 1);
    take_all(pair.client, &byte, 1);
    NEED(-pthread_join(thread, NULL));
    close(pair.client);
    close(pair.server);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    struct rlimit limits;
    NEED(getrlimit(RLIMIT_NOFILE, &limits));
    if (limits.rlim_max < LOWEST + 5 * NUMBERS) {
        used(promoted());
        return 0;
    }
    limit(limits.rlim_max);
    set = NEED(epoll_create1(EPOLL_CLOEXEC));
    for (enum way way = 0; way < WAYS; way++)
        all(way, limits.rlim_max);
    return 0;
}
