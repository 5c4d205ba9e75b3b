/* A ring that nobody sees being made or entered, where MEGAPIPE_IO_URING says that it is for files: connections are promoted
 * all the same, until bytes of one have gone past the library. */
#include "own_call.h"
#include "transcript.h"
#include <linux/io_uring.h>

int main(int count, char **arguments)
{
    (void)count;
    if (!getenv("MEGAPIPE_IO_URING")) {
        NEED(setenv("MEGAPIPE_IO_URING", "files", 1));
        execv("/proc/self/exe", arguments);
        fail("exec");
    }
    struct io_uring_params params = {0};
    say("a ring: %d", own_call(SYS_io_uring_setup, 4, (long)&params, 0, 0, 0) >= 0);
    used(promoted());

    /* Before it can be promoted, since its server does not exist yet. */
    struct sockaddr_in at;
    char byte;
    int listener = listening(&at);
    struct pair past = {.client = NEED(socket(AF_INET, SOCK_STREAM, 0))};
    NEED(connect(past.client, (struct sockaddr *)&at, sizeof at));
    say("past the library: %ld", own_call(SYS_write, past.client, (long)"x", 1, 0, 0));
    past.server = NEED(accept(listener, NULL, NULL));
    SHOW(recv(past.server, &byte, 1, 0));
    for (int round = 0; round < 200; round++)
        ping(past);

    struct pair next = connected();
    for (int round = 0; round < 200; round++)
        ping(next);
    say("by the kernel: %d", ping(next) >= PING);
    return 0;
}
