/* dup(2), dup2(2), dup3(2) and F_DUPFD: one socket by several numbers, and what closing one
 * of them does. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    int two = NEED(dup(pair.server));
    SHOW(send(pair.client, "abcdef", 6, 0));
    SHOW(recv(two, bytes, 3, 0));
    show_bytes("recv", bytes, 3);
    SHOW(close(pair.server));
    SHOW(recv(two, bytes, 16, 0));
    show_bytes("recv", bytes, 3);
    SHOW(recv(pair.server, bytes, 16, 0));
    SHOW(send(two, "answer", 6, 0));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(dup2(two, 100));
    SHOW(dup2(two, two));
    SHOW(close(two));
    SHOW(send(100, "by 100", 6, 0));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(dup3(100, 101, O_CLOEXEC));
    SHOW(dup3(100, 100, 0));
    SHOW(fcntl(101, F_GETFD));
    SHOW(fcntl(101, F_DUPFD, 200));
    SHOW(fcntl(101, F_DUPFD_CLOEXEC, 300));
    SHOW(close(100));
    SHOW(close(101));
    SHOW(send(pair.client, "to 200", 6, 0));
    SHOW(recv(200, bytes, 3, 0));
    SHOW(recv(300, bytes, 16, 0));
    nonblocking(300);
    SHOW(recv(200, bytes, 16, 0));
    /* One end put over another: that is closed. */
    struct pair other = promoted();
    SHOW(dup2(200, other.server));
    SHOW(recv(other.client, bytes, 16, 0));
    SHOW(send(pair.client, "over", 4, 0));
    wait_for(other.server, 4);
    SHOW(recv(other.server, bytes, 16, 0));
    SHOW(dup2(999, other.server));
    SHOW(send(pair.client, "still", 5, 0));
    wait_for(other.server, 5);
    SHOW(recv(other.server, bytes, 16, 0));
    SHOW(close(200));
    SHOW(close(300));
    SHOW(send(other.server, "last number", 11, 0));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(close(other.server));
    SHOW(recv(pair.client, bytes, 16, 0));
    SHOW(dup(999));
    SHOW(dup2(pair.client, -1));
    return 0;
}
