/* Calls that move nothing. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[4] = "abc";
    struct iovec none[2] = {{NULL, 0}, {bytes, 0}};
    struct msghdr head = {0};
    SHOW(write(pair.client, bytes, 0));
    SHOW(send(pair.client, bytes, 0, 0));
    SHOW(writev(pair.client, none, 2));
    SHOW(writev(pair.client, NULL, 0));
    SHOW(sendmsg(pair.client, &head, 0));
    SHOW(read(pair.server, bytes, 0));
    SHOW(readv(pair.server, none, 2));
    SHOW(readv(pair.server, NULL, 0));
    /* recv(2) of nothing waits for something, and does not take it. */
    SHOW(recv(pair.server, bytes, 0, MSG_DONTWAIT));
    SHOW(recvmsg(pair.server, &head, MSG_DONTWAIT));
    SHOW(send(pair.client, "x", 1, 0));
    wait_for(pair.server, 1);
    SHOW(recv(pair.server, bytes, 0, 0));
    SHOW(recv(pair.server, bytes, 0, MSG_DONTWAIT));
    SHOW(read(pair.server, bytes, 0));
    SHOW(recvmsg(pair.server, &head, 0));
    SHOW(recv(pair.server, bytes, 1, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(recv(pair.server, bytes, 0, 0));
    SHOW(recv(pair.server, bytes, 1, 0));
    SHOW(send(pair.client, bytes, 0, MSG_NOSIGNAL));
    SHOW(close(pair.client));
    SHOW(read(pair.server, bytes, 0));
    return 0;
}
