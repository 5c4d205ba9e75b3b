/* FIONREAD tells of all that is here: servers that were told of it by an edge stop reading
 * after so many bytes. The sender outruns what memory takes, so that some came by the kernel. */
#include "transcript.h"
#include <linux/sockios.h>

static struct pair pair;
static unsigned char bytes[1 << 20];

static int unread(void)
{
    int count = -1;
    NEED(ioctl(pair.server, FIONREAD, &count));
    return count;
}

/* What left the sender is at the receiver, once it was acknowledged. */
static void settle(long sent)
{
    int queued = -1;
    for (int attempt = 0; attempt < 2000; attempt++) {
        NEED(ioctl(pair.client, SIOCOUTQ, &queued));
        if (unread() == sent - queued) {
            say("all that was sent is unread");
            return;
        }
        pause_ms(1);
    }
    say("%d unread of %ld sent, %d of them queued", unread(), sent, queued);
}

int main(void)
{
    pair = promoted();
    int small = 4096;
    NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
    nonblocking(pair.client);
    long sent = 0, count;
    fill(bytes, 0, sizeof bytes);
    while ((count = send(pair.client, bytes + sent, 5000, 0)) > 0)
        sent += count;
    say("it is full: %d", errno == EAGAIN);
    settle(sent);
    long taken = 0;
    for (int round = 0; round < 20; round++) {
        int before = unread();
        count = NEED(recv(pair.server, bytes, 1000, 0));
        if (!same(bytes, taken, count))
            say("wrong bytes");
        taken += count;
        /* The kernel may bring more of what is queued. */
        if (unread() < before - count)
            say("%d unread, %d before %ld were taken", unread(), before, count);
    }
    settle(sent - taken);
    while (taken < sent) {
        count = NEED(recv(pair.server, bytes, sizeof bytes, 0));
        if (!same(bytes, taken, count))
            say("wrong bytes");
        taken += count;
    }
    say("unread: %d", unread());
    return 0;
}
