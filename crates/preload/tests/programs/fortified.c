/* The calls that -D_FORTIFY_SOURCE makes of read, recv, recvfrom, poll and ppoll where the
 * compiler knows the size of the buffer, but not the count. */
#include "transcript.h"

static volatile size_t five = 5;
static volatile nfds_t one = 1;

int main(void)
{
    struct pair pair = promoted();
    char bytes[16] = {0};
    SHOW(send(pair.client, "fifteen bytes..", 15, 0));
    SHOW(read(pair.server, bytes, five));
    show_bytes("read", bytes, 5);
    SHOW(recv(pair.server, bytes, five, 0));
    show_bytes("recv", bytes, 5);
    struct pollfd fd = {.fd = pair.server, .events = POLLIN};
    SHOW(poll(&fd, one, -1));
    say("%s", events_text(fd.revents));
    struct timespec limit = {1, 0};
    SHOW(ppoll(&fd, one, &limit, NULL));
    SHOW(recvfrom(pair.server, bytes, five, 0, NULL, NULL));
    show_bytes("recvfrom", bytes, 5);
    SHOW(recv(pair.server, bytes, five, MSG_DONTWAIT));
    SHOW(poll(&fd, one, 0));
    say("%s", events_text(fd.revents));
    fd_set set;
    FD_ZERO(&set);
    volatile int number = pair.client;
    FD_SET(number, &set);
    SHOW(send(pair.server, "x", 1, 0));
    SHOW(select(number + 1, &set, NULL, NULL, NULL));
    say("set: %d", FD_ISSET(number, &set) != 0);
    return 0;
}
