/* SO_RCVTIMEO and SO_SNDTIMEO. */
#include "transcript.h"

static char bytes[1 << 16];

static void limit(int fd, int option, int ms)
{
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    NEED(setsockopt(fd, SOL_SOCKET, option, &time, sizeof time));
}

int main(void)
{
    struct pair pair = promoted();
    limit(pair.server, SO_RCVTIMEO, 60);
    long began = milliseconds();
    SHOW(recv(pair.server, bytes, 4, 0));
    say("it waited: %d", milliseconds() - began >= 50);
    began = milliseconds();
    SHOW(read(pair.server, bytes, 4));
    say("it waited: %d", milliseconds() - began >= 50);
    SHOW(send(pair.client, "abc", 3, 0));
    SHOW(recv(pair.server, bytes, 8, MSG_WAITALL));
    SHOW(recv(pair.server, bytes, 8, MSG_WAITALL));
    SHOW(recv(pair.server, bytes, 8, MSG_DONTWAIT));
    struct timeval time;
    socklen_t length = sizeof time;
    SHOW(getsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &time, &length));
    limit(pair.server, SO_RCVTIMEO, 0);

    /* A sender that nobody reads. */
    limit(pair.client, SO_SNDTIMEO, 60);
    long sent = 0, last = 0;
    while (began = milliseconds(), (last = send(pair.client, bytes, sizeof bytes, 0)) > 0)
        sent += last;
    say("send = %ld %s", last, strerrorname_np(errno));
    say("it waited: %d", milliseconds() - began >= 50);
    while (sent > 0)
        sent -= NEED(recv(pair.server, bytes, sizeof bytes, 0));
    say("left: %ld", sent);
    SHOW(recv(pair.server, bytes, 1, MSG_DONTWAIT));
    SHOW(send(pair.client, "again", 5, 0));
    SHOW(recv(pair.server, bytes, 5, MSG_WAITALL));
    return 0;
}
