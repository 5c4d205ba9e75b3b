/* FIONREAD, FIONBIO, SIOCOUTQ and SIOCATMARK. */
#include "transcript.h"
#include <linux/sockios.h>

static struct pair pair;

static void unread(int fd)
{
    int count = -1;
    SHOW(ioctl(fd, FIONREAD, &count));
    say("unread: %d", count);
}

int main(void)
{
    pair = promoted();
    char bytes[16];
    unread(pair.server);
    SHOW(send(pair.client, "abcdef", 6, 0));
    wait_for(pair.server, 6);
    unread(pair.server);
    SHOW(recv(pair.server, bytes, 2, 0));
    unread(pair.server);
    SHOW(send(pair.client, "gh", 2, 0));
    wait_for(pair.server, 6);
    unread(pair.server);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    unread(pair.server);
    int on = 1, off = 0, left = -1;
    SHOW(ioctl(pair.server, FIONBIO, &on));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(fcntl(pair.server, F_GETFL) & O_NONBLOCK);
    SHOW(ioctl(pair.server, FIONBIO, &off));
    SHOW(fcntl(pair.server, F_GETFL) & O_NONBLOCK);
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    pause_ms(20);
    /* How much is not acknowledged yet depends on time. */
    SHOW(ioctl(pair.client, SIOCOUTQ, &left));
    SHOW(ioctl(pair.server, SIOCATMARK, &left));
    say("at the mark: %d", left);
    SHOW(ioctl(pair.server, 0x1234, &left));
    SHOW(ioctl(pair.server, FIONREAD, NULL));
    SHOW(ioctl(pair.server, FIONBIO, NULL));
    SHOW(close(pair.server));
    SHOW(ioctl(pair.server, FIONREAD, &left));
    SHOW(ioctl(pair.client, FIONREAD, &left));
    say("unread: %d", left);
    return 0;
}
