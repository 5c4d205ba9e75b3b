/* sendfile(2) to a socket, and splice(2) between sockets and pipes. */
#include "transcript.h"
#include <sys/sendfile.h>

enum { BIG = 3 << 20 };
static struct pair pair;

static void *drain(void *argument)
{
    long left = *(long *)argument, place = 0;
    static unsigned char bytes[1 << 16];
    while (left > 0) {
        ssize_t took = NEED(recv(pair.server, bytes, sizeof bytes, 0));
        if (took == 0 || !same(bytes, place, took)) {
            say("wrong bytes");
            return NULL;
        }
        place += took;
        left -= took;
    }
    say("all bytes came in their order");
    return NULL;
}

int main(void)
{
    char name[] = "sent-XXXXXX", bytes[64];
    int file = NEED(mkstemp(name));
    NEED(unlink(name));
    static unsigned char contents[BIG];
    fill(contents, 0, BIG);
    NEED(write(file, contents, BIG));
    pair = promoted();
    off_t at = 0;
    SHOW(sendfile(pair.client, file, &at, 10));
    say("offset %ld", (long)at);
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    say("right: %d", same((unsigned char *)bytes, 0, 10));
    SHOW(lseek(file, 5, SEEK_SET));
    SHOW(sendfile(pair.client, file, NULL, 10));
    SHOW(lseek(file, 0, SEEK_CUR));
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    say("right: %d", same((unsigned char *)bytes, 5, 10));
    at = BIG - 3;
    SHOW(sendfile(pair.client, file, &at, 10));
    SHOW(sendfile(pair.client, file, &at, 10));
    say("offset %ld", (long)at);
    SHOW(recv(pair.server, bytes, 10, 0));
    SHOW(sendfile(pair.client, file, &at, 0));
    at = -1;
    SHOW(sendfile(pair.client, file, &at, 10));

    long left = BIG;
    pthread_t thread;
    pthread_create(&thread, NULL, drain, &left);
    at = 0;
    while (at < BIG)
        NEED(sendfile(pair.client, file, &at, BIG - at));
    pthread_join(thread, NULL);
    say("offset %ld", (long)at);

    /* A socket that does not wait takes what fits; the rest is sent later. */
    nonblocking(pair.client);
    at = 0;
    ssize_t sent;
    long rounds = 0;
    while ((sent = sendfile(pair.client, file, &at, BIG - at)) > 0 && at < BIG)
        rounds++;
    say("it stopped: %d", sent < 0 ? errno == EAGAIN : at == BIG);
    pthread_create(&thread, NULL, drain, &left);
    while (at < BIG) {
        show_poll("room", pair.client, POLLOUT, -1) == 1 ? 0 : (fail("poll"), 0);
        break;
    }
    while (at < BIG) {
        struct pollfd fd = {.fd = pair.client, .events = POLLOUT};
        NEED(poll(&fd, 1, 20000));
        if (sendfile(pair.client, file, &at, BIG - at) < 0 && errno != EAGAIN)
            fail("sendfile");
    }
    pthread_join(thread, NULL);
    return 0;
}
