/* One end goes to another program, and when that has it the other end does, too: what the second
 * one sends is all that the first one's new owner reads. */
#include "transcript.h"

/* This program again, with a connection as a descriptor of that number. */
enum { CONNECTION = 20, READY };

static pid_t given(const char *what, int fd, int other)
{
    pid_t child = NEED(fork());
    if (child == 0) {
        close(other);
        NEED(dup2(fd, CONNECTION));
        execv("/proc/self/exe", (char *[]){"left_in_turn", (char *)what, NULL});
        fail("execv");
    }
    return child;
}

int main(int count, char **arguments)
{
    char bytes[64];
    if (count > 1 && !strcmp(arguments[1], "takes")) {
        size_t got = 0;
        NEED(write(READY, "", 1));
        for (ssize_t more; (more = NEED(read(CONNECTION, bytes + got, sizeof bytes - got))) > 0;)
            got += more;
        show_bytes("taken", bytes, got);
        return 0;
    }
    if (count > 1)
        return write(CONNECTION, "of the second", 13) != 13;
    for (int round = 0; round < 3; round++) {
        int ready[2];
        NEED(pipe(ready));
        struct pair pair = promoted();
        NEED(dup2(ready[1], READY));
        int status;
        pid_t first = given("takes", pair.server, pair.client);
        close(pair.server);
        NEED(read(ready[0], bytes, 1));
        pid_t second = given("gives", pair.client, ready[0]);
        NEED(waitpid(second, &status, 0));
        say("status %d", status);
        if (round > 0)
            send_all(pair.client, " and of the one that gave it away", 33);
        close(pair.client);
        NEED(waitpid(first, &status, 0));
        say("status %d", status);
        close(ready[0]);
        close(ready[1]);
    }
    return 0;
}
