/* A ring whose submissions no call announces keeps connections on TCP; the same program without SQPOLL has them promoted. */
#include "ring.h"

int main(int count, char **arguments)
{
    struct ring ring;
    if (count == 1) {
        say("one that polls: %d", make(&ring, IORING_SETUP_SQPOLL));
        struct pair pair = connected();
        for (int round = 0; round < 100; round++)
            ping(pair);
        say("by the kernel: %d", ping(pair) >= PING);
        execv("/proc/self/exe", (char *[]){arguments[0], "again", NULL});
        fail("exec");
    }
    say("one that does not: %d", make(&ring, 0));
    used(promoted());
    return 0;
}
