/* SO_RCVLOWAT: calls wait for so many bytes, and nothing is readable with fewer, wherever they are:
 * set before the connection is made, and after it was promoted. */
#include "transcript.h"

static struct pair pair;

static void *sender(void *unused)
{
    (void)unused;
    for (int part = 0; part < 4; part++) {
        pause_ms(30);
        send_all(pair.client, "12345", 5);
    }
    return NULL;
}

static void mark(int value)
{
    SHOW(setsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value));
    socklen_t length = sizeof value;
    NEED(getsockopt(pair.server, SOL_SOCKET, SO_RCVLOWAT, &value, &length));
    say("SO_RCVLOWAT: %d", value);
}

/* The mark is there before the connection is. */
static void marked(void)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    pair.server = NEED(socket(AF_INET, SOCK_STREAM, 0));
    mark(20);
    NEED(connect(pair.server, (struct sockaddr *)&at, sizeof at));
    pair.client = NEED(accept(listener, NULL, NULL));
    close(listener);
}

/* Who sleeps is woken by the last of the bytes. */
static void asleep(int set)
{
    char bytes[64];
    pthread_t thread;
    mark(20);
    for (int way = 0; way < 3; way++) {
        pthread_create(&thread, NULL, sender, NULL);
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(pair.server, &readable);
        if (way == 0)
            show_poll("asleep", pair.server, POLLIN, -1);
        else if (way == 1)
            show_epoll("asleep", set, -1);
        else
            SHOW(select(pair.server + 1, &readable, NULL, NULL, NULL));
        int unread = 0;
        NEED(ioctl(pair.server, FIONREAD, &unread));
        say("FIONREAD: %d", unread);
        pthread_join(thread, NULL);
        SHOW(recv(pair.server, bytes, 7, 0));
        show_poll("some are left", pair.server, POLLIN, 10);
        show_epoll("some are left", set, 10);
        SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
    }
}

static void edges(void)
{
    char bytes[64];
    int set = NEED(epoll_create1(0)), sum = 0;
    NEED(add(set, pair.server, EPOLLIN | EPOLLET, 2));
    show_epoll("nothing", set, 10);
    for (int count = 5; count < 15; count += 3) {
        NEED(send(pair.client, "fourteen bytes", count, 0));
        wait_for(pair.server, sum += count);
        say("%d bytes", sum);
        show_epoll("edge", set, 20);
        show_epoll("no edge", set, 10);
    }
    NEED(send(pair.client, "x", 1, 0));
    wait_for(pair.server, sum + 1);
    show_epoll("one more", set, -1);
    SHOW(recv(pair.server, bytes, 30, 0));
    show_epoll("taken", set, 10);
    NEED(send(pair.client, "x", 1, 0));
    wait_for(pair.server, sum - 28);
    show_epoll("too few", set, 10);
    mark(8);
    show_epoll("enough by now", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    close(set);
}

/* More than one buffer on the way holds at once. */
static void large(void)
{
    enum { HALF = 60000 };
    static unsigned char bytes[2 * HALF];
    mark(2 * HALF);
    fill(bytes, 0, HALF);
    send_all(pair.client, bytes, HALF);
    show_poll("half", pair.server, POLLIN, 20);
    fill(bytes, HALF, HALF);
    send_all(pair.client, bytes, HALF);
    show_poll("all", pair.server, POLLIN, -1);
    memset(bytes, 0, sizeof bytes);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    say("right: %d", same(bytes, 0, sizeof bytes));
}

int main(void)
{
    for (int late = 0; late < 2; late++) {
        say("# set %s", late ? "late" : "at the beginning");
        char bytes[64];
        if (late) {
            pair = promoted();
            mark(20);
        } else {
            marked();
        }
        pthread_t thread;
        pthread_create(&thread, NULL, sender, NULL);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        pthread_join(thread, NULL);
        SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
        SHOW(send(pair.client, "few", 3, 0));
        wait_for(pair.server, 3);
        show_poll("few", pair.server, POLLIN, 20);
        SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
        edges();
        mark(20);
        SHOW(send(pair.client, "few", 3, 0));
        wait_for(pair.server, 3);
        int set = NEED(epoll_create1(0));
        NEED(add(set, pair.server, EPOLLIN, 1));
        show_epoll("few", set, 20);
        SHOW(send(pair.client, "seventeen bytes..", 17, 0));
        wait_for(pair.server, 20);
        show_epoll("enough", set, -1);
        show_poll("enough", pair.server, POLLIN, -1);
        SHOW(recv(pair.server, bytes, 19, 0));
        show_epoll("one", set, 20);
        mark(1);
        show_epoll("one is enough", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(send(pair.client, "x", 1, 0));
        show_epoll("one", set, -1);
        mark(10);
        show_epoll("one is not enough", set, 20);
        SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
        asleep(set);
        large();
        mark(10);
        SHOW(send(pair.client, "x", 1, 0));
        wait_for(pair.server, 1);
        SHOW(shutdown(pair.client, SHUT_WR));
        show_epoll("the end", set, -1);
        show_poll("the end", pair.server, POLLIN, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        close(set);
        close(pair.server);
        close(pair.client);
    }
    return 0;
}
