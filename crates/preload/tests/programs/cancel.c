/* pthread_cancel(3) of threads that wait in calls on a socket. */
#include "transcript.h"

static struct pair pair;
static int set;

static void cleaned(void *what)
{
    say("cleaned up: %s", (const char *)what);
}

static void *in_recv(void *unused)
{
    char byte;
    (void)unused;
    pthread_cleanup_push(cleaned, "recv");
    recv(pair.server, &byte, 1, 0);
    pthread_cleanup_pop(0);
    return "returned";
}

static void *in_read(void *unused)
{
    char byte;
    (void)unused;
    pthread_cleanup_push(cleaned, "read");
    if (read(pair.server, &byte, 1) < 0)
        fail("read");
    pthread_cleanup_pop(0);
    return "returned";
}

static void *in_epoll(void *unused)
{
    struct epoll_event event;
    (void)unused;
    pthread_cleanup_push(cleaned, "epoll_wait");
    epoll_wait(set, &event, 1, -1);
    pthread_cleanup_pop(0);
    return "returned";
}

static void *in_poll(void *unused)
{
    struct pollfd fd = {.fd = pair.server, .events = POLLIN};
    (void)unused;
    pthread_cleanup_push(cleaned, "poll");
    poll(&fd, 1, -1);
    pthread_cleanup_pop(0);
    return "returned";
}

int main(void)
{
    pair = promoted();
    set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    void *(*const bodies[])(void *) = {in_recv, in_read, in_epoll, in_poll};
    char bytes[8];
    for (int at = 0; at < 4; at++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, bodies[at], NULL);
        pause_ms(50);
        NEED(-pthread_cancel(thread));
        pthread_join(thread, &result);
        say("%s", result == PTHREAD_CANCELED ? "cancelled" : (const char *)result);
        /* The connection is as it was. */
        SHOW(send(pair.client, "x", 1, 0));
        show_epoll("ready", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        show_epoll("taken", set, 0);
    }
    return 0;
}
