/* send(2), recv(2), sendto(2) and recvfrom(2) with what they take beside bytes. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[64] = {0};
    SHOW(send(pair.client, "hello", 5, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    show_bytes("recv", bytes, 5);
    SHOW(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));

    struct sockaddr_in from;
    memset(&from, 0x55, sizeof from);
    socklen_t length = sizeof from;
    SHOW(sendto(pair.server, "answer", 6, 0, NULL, 0));
    SHOW(recvfrom(pair.client, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &length));
    say("length %u, family %#x", length, from.sin_family);
    length = sizeof from;
    SHOW(recvfrom(pair.client, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&from, &length));
    say("length %u", length);

    /* A connected stream ignores where to. */
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    SHOW(sendto(pair.client, "to", 2, 0, (struct sockaddr *)&to, sizeof to));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(send(pair.client, "more", 4, MSG_MORE));
    SHOW(send(pair.client, "end", 3, MSG_EOR));
    SHOW(recv(pair.server, bytes, 7, MSG_WAITALL));
    show_bytes("recv", bytes, 7);
    SHOW(send(pair.client, "quiet", 5, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_DONTROUTE));
    SHOW(recv(pair.server, bytes, 3, 0));
    SHOW(recv(pair.server, bytes, 3, MSG_DONTWAIT));
    show_bytes("recv", bytes, 2);
    /* Flags that mean nothing to TCP. */
    SHOW(send(pair.client, "x", 1, MSG_CONFIRM));
    SHOW(recv(pair.server, bytes, 1, MSG_CMSG_CLOEXEC));
    SHOW(recv(pair.server, bytes, 1, MSG_ERRQUEUE));
    SHOW(close(pair.server));
    SHOW(recv(pair.client, bytes, 1, 0));
    SHOW(close(pair.client));
    return 0;
}
