/* Sockets that have something to read already go into an epoll set in which another thread sleeps,
 * from one set into another, and into a second one beside the first. */
#include "transcript.h"

static int set;
static bool asks_again = true;

static void *waits(void *nothing)
{
    show_epoll("asleep", set, 10000);
    if (asks_again)
        show_epoll("again", set, 0);
    return nothing;
}

static void leave(struct pair pair)
{
    char bytes[16];
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    close(pair.client);
    close(pair.server);
    close(set);
}

/* `first`: the set has another promoted socket already. */
static void added(unsigned events, bool first)
{
    say("# added %s%s%s", events & EPOLLET ? "edge-triggered " : "", events & EPOLLONESHOT ? "once " : "",
        first ? "beside another" : "alone");
    struct pair pair = promoted(), other = {-1, -1};
    set = NEED(epoll_create1(0));
    if (first) {
        other = promoted();
        NEED(add(set, other.server, EPOLLIN, 2));
    }
    NEED(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    pause_ms(20);
    NEED(add(set, pair.server, EPOLLIN | events, 1));
    pthread_join(thread, NULL);
    close(other.client);
    close(other.server);
    leave(pair);
}

/* It is no longer asked about while bytes come, and then again. */
static void modified(void)
{
    say("# modified");
    struct pair pair = promoted();
    set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLRDHUP, 1));
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    pause_ms(20);
    NEED(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    NEED(modify(set, pair.server, EPOLLIN, 1));
    pthread_join(thread, NULL);
    leave(pair);
}

static void moved(void)
{
    say("# moved");
    struct pair pair = promoted();
    int before = NEED(epoll_create1(0));
    set = NEED(epoll_create1(0));
    NEED(add(before, pair.server, EPOLLIN, 3));
    show_epoll("before", before, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    pause_ms(20);
    NEED(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    NEED(epoll_ctl(before, EPOLL_CTL_DEL, pair.server, NULL));
    NEED(add(set, pair.server, EPOLLIN, 1));
    pthread_join(thread, NULL);
    show_epoll("before", before, 0);
    close(before);
    leave(pair);
}

static void in_both(bool ended)
{
    say("# in both%s", ended ? ", and at its end" : "");
    /* For a moment the bytes are on their way from the ring to the kernel. */
    asks_again = false;
    struct pair pair = promoted();
    int first = NEED(epoll_create1(0));
    set = NEED(epoll_create1(0));
    NEED(add(first, pair.server, EPOLLIN, 3));
    show_epoll("first", first, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    pause_ms(20);
    NEED(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    if (ended)
        SHOW(shutdown(pair.client, SHUT_WR));
    NEED(add(set, pair.server, EPOLLIN, 1));
    pthread_join(thread, NULL);
    show_epoll("first", first, 1000);
    char bytes[16];
    SHOW(recv(pair.server, bytes, 2, 0));
    show_epoll("first", first, 1000);
    SHOW(send(pair.server, "answer", 6, 0));
    SHOW(recv(pair.client, bytes, 6, 0));
    close(first);
    leave(pair);
}

/* As servers do that give a connection to another thread: its set has it before the set of the
 * first thread, which looked at it until then, has it no more. */
static void handed_over(bool ended)
{
    say("# handed over%s", ended ? ", at its end" : "");
    struct pair pair = promoted();
    char bytes[16];
    int first = NEED(epoll_create1(0));
    set = NEED(epoll_create1(0));
    NEED(add(first, pair.server, EPOLLIN, 3));
    for (int round = 0; round < 3; round++) {
        NEED(send(pair.client, "before", 6, 0));
        show_epoll("first", first, 10000);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    }
    NEED(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    if (ended)
        SHOW(shutdown(pair.client, SHUT_WR));
    NEED(add(set, pair.server, EPOLLIN, 1));
    NEED(epoll_ctl(first, EPOLL_CTL_DEL, pair.server, NULL));
    show_epoll("first", first, 0);
    show_epoll("second", set, 10000);
    SHOW(recv(pair.server, bytes, 2, 0));
    show_epoll("second", set, 10000);
    SHOW(recv(pair.server, bytes, 2, 0));
    if (ended) {
        show_epoll("second", set, 10000);
    } else {
        asks_again = false;
        pthread_t thread;
        pthread_create(&thread, NULL, waits, NULL);
        pause_ms(20);
        NEED(send(pair.client, "abc", 3, 0));
        pthread_join(thread, NULL);
    }
    close(first);
    leave(pair);
}

/* The set that got it last is closed, or has it no more, and the first one tells of it again. */
static void handed_back(bool closed)
{
    say("# handed back%s", closed ? " by a close" : "");
    struct pair pair = promoted();
    char bytes[16];
    int first = NEED(epoll_create1(0));
    set = NEED(epoll_create1(0));
    NEED(add(first, pair.server, EPOLLIN, 3));
    NEED(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    SHOW(shutdown(pair.client, SHUT_WR));
    NEED(add(set, pair.server, EPOLLIN, 1));
    show_epoll("second", set, 10000);
    if (closed)
        close(set);
    else
        NEED(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, NULL));
    show_epoll("first", first, 10000);
    SHOW(recv(pair.server, bytes, 2, 0));
    show_epoll("first", first, 10000);
    if (closed)
        set = NEED(epoll_create1(0));
    close(first);
    leave(pair);
}

int main(void)
{
    for (int first = 0; first < 2; first++) {
        added(0, first);
        added(EPOLLET, first);
        added(EPOLLONESHOT, first);
    }
    modified();
    moved();
    in_both(false);
    in_both(true);
    handed_over(false);
    handed_over(true);
    handed_back(false);
    handed_back(true);
    return 0;
}
