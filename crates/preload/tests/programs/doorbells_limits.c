/* Limits of the process and of a socket that change while its threads sleep: a poll(2) of as many descriptors as
 * RLIMIT_NOFILE allows, and an SO_RCVTIMEO that another thread sets. */
#include "transcript.h"

#include <sys/resource.h>

enum { PAIRS = 14 };

static void allow(rlim_t files)
{
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = files;
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
}

static void as_many_as_allowed(void)
{
    struct pair pairs[PAIRS];
    struct pollfd all[2 * PAIRS];
    allow(64);
    for (int at = 0; at < PAIRS; at++) {
        pairs[at] = promoted();
        all[at] = (struct pollfd){pairs[at].client, POLLIN, 0};
        all[PAIRS + at] = (struct pollfd){pairs[at].server, POLLIN, 0};
    }
    SHOW(poll(all, 2 * PAIRS, 20));
    allow(2 * PAIRS);
    SHOW(poll(all, 2 * PAIRS, 20));
    send_all(pairs[3].client, "x", 1);
    SHOW(poll(all, 2 * PAIRS, 10000));
    char byte;
    SHOW(recv(pairs[3].server, &byte, 1, 0));
    allow(2 * PAIRS - 1);
    SHOW(poll(all, 2 * PAIRS, 20));
    allow(1);
    send_all(pairs[4].client, "x", 1);
    SHOW(recv(pairs[4].server, &byte, 1, 0));
    allow(64);
    for (int at = 0; at < PAIRS; at++) {
        close(pairs[at].client);
        close(pairs[at].server);
    }
}

static struct pair pair;
static volatile pid_t reader;

static void *reads_twice(void *none)
{
    char byte;
    reader = gettid();
    SHOW(recv(pair.server, &byte, 1, 0));
    SHOW(recv(pair.server, &byte, 1, 0));
    return none;
}

static void limit(void)
{
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 100000}, sizeof(struct timeval)));
}

int main(void)
{
    as_many_as_allowed();

    say("# a time limit for the next read");
    pair = promoted();
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, reads_twice, NULL));
    until_asleep(&reader);
    limit();
    send_all(pair.client, "x", 1);
    pthread_join(thread, NULL);
    return 0;
}
