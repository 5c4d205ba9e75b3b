/* A child's exec fails, while bytes that nobody read lie in both memory and the kernel: the connection
 * would have stayed with the parent, and is inherited as before by what the child executes next. */
#include "transcript.h"

int main(void)
{
    static char bytes[30000];
    struct pair pair = promoted();
    nonblocking(pair.client);
    long sent = 0, count;
    for (int step = 0; step < 4; step++) {
        while ((count = send(pair.client, bytes, sizeof bytes, 0)) > 0)
            sent += count;
        /* Little is read: the ring holds more, and so does the kernel. */
        for (int i = 0; i < 20; i++)
            sent -= NEED(recv(pair.server, bytes, sizeof bytes, 0));
    }
    pid_t child = NEED(fork());
    if (child == 0) {
        char *none[] = {"none", NULL};
        SHOW(execv("/nowhere", none));
        SHOW(execvp("/nowhere/either", none));
        SHOW(fcntl(pair.server, F_GETFD));
        SHOW(fcntl(pair.client, F_GETFD));
        fflush(stdout);
        _exit(0);
    }
    status_of(child);
    SHOW(fcntl(pair.server, F_GETFD));
    while (sent > 0)
        sent -= NEED(recv(pair.server, bytes, sizeof bytes, 0));
    say("left: %ld", sent);
    return 0;
}
