/* Bytes lie unread while first the sender's end and then the receiver's comes into several sets, or under two
 * numbers into one: none is lost. */
#include "transcript.h"

static void left(bool sets)
{
    struct pair pair = promoted();
    char bytes[64];
    int first = NEED(epoll_create1(0)), second = NEED(epoll_create1(0));
    int client = NEED(dup(pair.client)), server = NEED(dup(pair.server));
    NEED(send(pair.server, "abcdefghijklmnopqr", 18, 0));
    NEED(add(first, pair.server, EPOLLIN, 1));
    NEED(add(sets ? second : first, sets ? pair.server : server, EPOLLIN, 2));
    NEED(add(sets ? first : second, pair.client, EPOLLIN, 3));
    NEED(add(second, sets ? pair.client : client, EPOLLIN, 4));
    show_poll("unread", pair.client, POLLIN, 5000);
    show_bytes("first", bytes, NEED(recv(pair.client, bytes, sizeof bytes, 0)));
    NEED(send(pair.server, "STUVWXYZ", 8, 0));
    show_poll("more", pair.client, POLLIN, 5000);
    show_bytes("second", bytes, NEED(recv(pair.client, bytes, sizeof bytes, 0)));
    NEED(send(pair.client, "back", 4, 0));
    show_poll("back", pair.server, POLLIN, 5000);
    show_bytes("back", bytes, NEED(recv(pair.server, bytes, sizeof bytes, 0)));
    NEED(shutdown(pair.server, SHUT_WR));
    show_poll("the end", pair.client, POLLIN, 5000);
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
}

int main(void)
{
    say("# two sets");
    left(true);
    say("# two numbers");
    left(false);
    return 0;
}
