/* SO_RCVLOWAT: calls wait for so many bytes, and nothing is readable with fewer. Where it is set
 * after a promotion, readiness calls tell of fewer bytes, too, and reads wait as ever. */
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
        if (late) {
            mark(3);
            SHOW(recv(pair.server, bytes, sizeof bytes, 0));
            close(pair.server);
            close(pair.client);
            continue;
        }
        show_poll("few", pair.server, POLLIN, 20);
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
        SHOW(shutdown(pair.client, SHUT_WR));
        show_epoll("the end", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
        close(set);
        close(pair.server);
        close(pair.client);
    }
    return 0;
}
