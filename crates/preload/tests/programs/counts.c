/* What is asked about a connection: bytes that wait, and TCP_INFO; and the time of recvmmsg(2). */
#include "transcript.h"
#include <linux/sockios.h>

int main(void)
{
    struct pair pair = promoted();
    char bytes[256];
    int count = -1;
    for (int round = 1; round < 4; round++) {
        SHOW(send(pair.client, bytes, 50, 0));
        wait_for(pair.server, 50 * round);
        SHOW(ioctl(pair.server, FIONREAD, &count));
        say("FIONREAD: %d", count);
        SHOW(ioctl(pair.client, FIONREAD, &count));
        say("the other way: %d", count);
        SHOW(ioctl(pair.client, SIOCOUTQNSD, &count));
        say("not sent: %d", count);
    }
    SHOW(recv(pair.server, bytes, 70, 0));
    SHOW(ioctl(pair.server, FIONREAD, &count));
    say("FIONREAD: %d", count);
    SHOW(recv(pair.server, bytes, sizeof bytes, MSG_PEEK | MSG_TRUNC));
    SHOW(ioctl(pair.server, SIOCATMARK, &count));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(ioctl(pair.server, FIONREAD, &count));
    say("FIONREAD: %d", count);

    struct tcp_info info;
    socklen_t length = sizeof info;
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_INFO, &info, &length));
    say("established: %d", info.tcpi_state == 1);
    length = 4;
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_INFO, &info, &length));
    say("length %d", length);
    int error = -1;
    length = sizeof error;
    SHOW(getsockopt(pair.client, SOL_SOCKET, SO_ERROR, &error, &length));
    say("SO_ERROR %d", error);

    /* One message is waited for, however long; the time is looked at after it. */
    struct iovec room[3] = {{bytes, 4}, {bytes + 4, 4}, {bytes + 8, 4}};
    struct mmsghdr messages[3];
    for (int at = 0; at < 3; at++)
        messages[at] = (struct mmsghdr){.msg_hdr = {.msg_iov = &room[at], .msg_iovlen = 1}};
    SHOW(send(pair.client, "aaaabbbbcc", 10, 0));
    wait_for(pair.server, 10);
    struct timespec limit = {0, 0};
    SHOW(recvmmsg(pair.server, messages, 3, 0, &limit));
    say("%u bytes", messages[0].msg_len);
    limit = (struct timespec){50, 0};
    SHOW(recvmmsg(pair.server, messages, 3, MSG_WAITFORONE, &limit));
    say("%u and %u bytes, time left: %d", messages[0].msg_len, messages[1].msg_len,
        limit.tv_sec == 49 && limit.tv_nsec > 0);
    limit = (struct timespec){50, 0};
    SHOW(recvmmsg(pair.server, messages, 3, MSG_DONTWAIT, &limit));
    limit = (struct timespec){0, 2000000000};
    SHOW(recvmmsg(pair.server, messages, 3, 0, &limit));
    SHOW(recvmmsg(pair.server, messages, 0, 0, NULL));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(recvmmsg(pair.server, messages, 1, 0, NULL));
    say("%u bytes", messages[0].msg_len);
    SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_INFO, &info, (socklen_t[]){sizeof info}));
    say("established: %d", info.tcpi_state == 1);
    return 0;
}
