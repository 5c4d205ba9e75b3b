/* Several threads that wait in one set at once, by level, by edges and by single shots, for connections whose peers wait for
 * each answer: every message wakes one of them. Some sleep between messages, so that all of the server's threads do. */
#include "transcript.h"

enum { THREADS = 4, CONNECTIONS = 8, MESSAGES = 600 };

static int set;
static uint32_t how;

static void *serves(void *unused)
{
    (void)unused;
    char bytes[64];
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, -1) != 1)
            continue;
        int fd = event.data.fd;
        ssize_t count;
        while ((count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            send_all(fd, bytes, count);
        if (count == 0)
            _exit(0);
        if (how & EPOLLONESHOT) {
            event.events = EPOLLIN | how;
            NEED(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
        }
    }
}

static void *asks(void *at)
{
    int fd = (int)(long)at, wrong = 0;
    for (int message = 0; message < MESSAGES; message++) {
        char sent = (char)message, back;
        send_all(fd, &sent, 1);
        take_all(fd, &back, 1);
        wrong += back != sent;
        if (message % 50 == fd % 50)
            usleep(2000);
    }
    return (void *)(long)wrong;
}

static void one(const char *name)
{
    struct sockaddr_in at;
    int listener = listening(&at), fds[CONNECTIONS];
    pid_t child = NEED(fork());
    if (child == 0) {
        close(listener);
        set = NEED(epoll_create1(EPOLL_CLOEXEC));
        for (int i = 0; i < CONNECTIONS; i++) {
            struct epoll_event event = {.events = EPOLLIN | how};
            event.data.fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
            NEED(connect(event.data.fd, (struct sockaddr *)&at, sizeof at));
            NEED(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event));
        }
        pthread_t thread;
        for (int i = 1; i < THREADS; i++)
            NEED(-pthread_create(&thread, NULL, serves, NULL));
        serves(NULL);
    }
    pthread_t threads[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++)
        fds[i] = NEED(accept(listener, NULL, NULL));
    for (int i = 0; i < CONNECTIONS; i++)
        NEED(-pthread_create(&threads[i], NULL, asks, (void *)(long)fds[i]));
    long wrong = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        void *result;
        NEED(-pthread_join(threads[i], &result));
        wrong += (long)result;
    }
    say("%s: %ld wrong answers", name, wrong);
    for (int i = 0; i < CONNECTIONS; i++)
        close(fds[i]);
    close(listener);
    NEED(waitpid(child, NULL, 0));
}

int main(void)
{
    static const struct { const char *name; uint32_t how; } ways[] = {
        {"level", 0}, {"edges", EPOLLET}, {"single shots", EPOLLONESHOT}, {"edges, single shots", EPOLLET | EPOLLONESHOT}};
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        how = ways[way].how;
        one(ways[way].name);
    }
    return 0;
}
