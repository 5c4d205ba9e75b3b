/* A descriptor that is closed, or replaced, while another thread waits in a call on it. */
#include "transcript.h"

static struct pair pair;
static volatile pid_t waiter;

static void *reads(void *unused)
{
    (void)unused;
    static char bytes[16];
    errno = UNTOUCHED;
    waiter = gettid();
    long count = recv(pair.server, bytes, sizeof bytes, 0);
    return (void *)(count < 0 ? -errno : count);
}

static void *polls(void *unused)
{
    (void)unused;
    struct pollfd fd = {.fd = pair.server, .events = POLLIN};
    errno = UNTOUCHED;
    waiter = gettid();
    long count = poll(&fd, 1, -1);
    return (void *)(count < 0 ? -errno : count << 16 | fd.revents);
}

int main(void)
{
    for (int way = 0; way < 4; way++) {
        say("# %s", (const char *[]){"recv, close", "recv, dup2", "poll, close", "recv, shutdown"}[way]);
        pair = promoted();
        int copy = NEED(fcntl(pair.server, F_DUPFD, 60));
        pthread_t thread;
        waiter = 0;
        pthread_create(&thread, NULL, way == 2 ? polls : reads, NULL);
        until_asleep(&waiter);
        if (way == 0 || way == 2)
            SHOW(close(pair.server));
        else if (way == 1)
            SHOW(dup2(STDERR_FILENO, pair.server) == pair.server);
        else
            SHOW(shutdown(pair.server, SHUT_RD));
        pause_ms(20);
        /* The socket lives on by its other number. */
        if (way < 3)
            SHOW(send(pair.client, "late", 4, 0));
        void *result;
        pthread_join(thread, &result);
        say("the waiter: %ld", (long)result);
        char bytes[16];
        SHOW(recv(copy, bytes, sizeof bytes, MSG_DONTWAIT));
        SHOW(send(copy, "from the copy", 13, 0));
        SHOW(recv(pair.client, bytes, 13, MSG_WAITALL));
        close(copy);
        if (way == 3 || way == 1)
            close(pair.server);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        close(pair.client);
    }
    return 0;
}
