/* Edge-triggered epoll, and bytes that the program was told of and leaves where they are: waits
 * go on to end in time, and to hear of everything else. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[64];
    int other[2];
    int set = NEED(epoll_create1(0));
    NEED(pipe(other));
    SHOW(add(set, pair.server, EPOLLIN | EPOLLET, 1));
    SHOW(add(set, other[0], EPOLLIN, 2));
    SHOW(send(pair.client, "abc", 3, 0));
    show_epoll("arrival", set, -1);
    /* More sleeps than a quiet connection is looked at. */
    for (int round = 0; round < 40; round++)
        show_epoll("told already", set, 1);
    SHOW(write(other[1], "x", 1));
    show_epoll("the other", set, -1);
    SHOW(read(other[0], bytes, sizeof bytes));
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.client, "def", 3, 0));
        show_epoll("another arrival", set, -1);
        for (int again = 0; again < 20; again++)
            show_epoll("told already", set, 1);
    }
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(send(pair.client, "ghi", 3, 0));
    show_epoll("arrival", set, -1);
    SHOW(shutdown(pair.client, SHUT_WR));
    show_epoll("the end beside the rest", set, -1);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    return 0;
}
