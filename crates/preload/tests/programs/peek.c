/* MSG_PEEK: more than a piece, then part of it read, at the end, and with other flags. */
#include "transcript.h"

/* Into more pieces than fit into one call of the library's. */
static void into_many(struct pair pair)
{
    unsigned char sent[180], got[200] = {0};
    struct iovec pieces[20];
    for (int at = 0; at < 20; at++)
        pieces[at] = (struct iovec){got + 10 * at, 10};
    struct msghdr head = {.msg_iov = pieces, .msg_iovlen = 20};
    fill(sent, 0, sizeof sent);
    SHOW(send(pair.client, sent, sizeof sent, 0));
    wait_for(pair.server, sizeof sent);
    SHOW(recvmsg(pair.server, &head, MSG_PEEK));
    SHOW(same(got, 0, sizeof sent));
    memset(got, 0, sizeof got);
    SHOW(recvmsg(pair.server, &head, 0));
    SHOW(same(got, 0, sizeof sent));
}

int main(void)
{
    struct pair pair = promoted();
    char a[4] = {0}, b[16] = {0};
    SHOW(recv(pair.server, a, 4, MSG_PEEK | MSG_DONTWAIT));
    SHOW(send(pair.client, "0123456789", 10, 0));
    SHOW(recv(pair.server, a, 4, MSG_PEEK));
    show_bytes("peeked", a, 4);
    struct iovec two[2] = {{a, 4}, {b, 16}};
    struct msghdr head = {.msg_iov = two, .msg_iovlen = 2};
    memset(a, 0, 4);
    SHOW(recvmsg(pair.server, &head, MSG_PEEK));
    show_bytes("first", a, 4);
    show_bytes("second", b, 16);
    SHOW(recv(pair.server, b, 3, 0));
    show_bytes("read", b, 3);
    SHOW(recv(pair.server, b, 16, MSG_PEEK));
    show_bytes("peeked", b, 7);
    SHOW(recv(pair.server, b, 16, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    SHOW(recv(pair.server, b, 7, MSG_PEEK | MSG_WAITALL));
    SHOW(send(pair.client, "ab", 2, 0));
    wait_for(pair.server, 9);
    SHOW(recv(pair.server, b, 16, MSG_PEEK));
    show_bytes("peeked", b, 9);
    SHOW(recv(pair.server, NULL, 4, MSG_PEEK | MSG_TRUNC));
    SHOW(recv(pair.server, b, 9, 0));
    show_bytes("read", b, 9);
    SHOW(recv(pair.server, b, 1, MSG_PEEK | MSG_DONTWAIT));
    into_many(pair);
    SHOW(send(pair.client, "last", 4, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    wait_for(pair.server, 4);
    SHOW(recv(pair.server, b, 16, MSG_PEEK));
    SHOW(recv(pair.server, b, 16, 0));
    SHOW(recv(pair.server, b, 16, MSG_PEEK));
    SHOW(recv(pair.server, b, 16, 0));
    return 0;
}
