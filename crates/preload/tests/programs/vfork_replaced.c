/* The child of a vfork(2) puts another file at a socket's number, and uses it: that is its own business. */
#include "transcript.h"

/* So many descriptors are open. */
static int open_ones(void)
{
    int count = 0;
    for (int number = 0; number < FIRST_HIDDEN; number++)
        count += fcntl(number, F_GETFD) >= 0;
    return count;
}

/* A child replaces what lies at `number`: a descriptor of the library's, perhaps. */
static void replace_in_child(int number)
{
    int before = open_ones(), own[3], status;
    pid_t child = vfork();
    if (child == 0)
        _exit(dup2(STDIN_FILENO, number) == number ? 0 : errno);
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    struct pair other = promoted();
    SHOW(open_ones() - before);
    for (int at = 0; at < 3; at++)
        own[at] = NEED(fcntl(STDIN_FILENO, F_DUPFD, 60));
    for (int at = 0; at < 3; at++)
        SHOW(close(own[at]));
    SHOW(close(other.client));
    SHOW(close(other.server));
}

int main(void)
{
    struct pair pair = promoted();
    int pipe[2], status;
    char bytes[64];
    NEED(pipe2(pipe, O_CLOEXEC));
    pid_t child = vfork();
    if (child == 0) {
        dup2(pipe[1], pair.client);
        _exit(write(pair.client, "report", 6) == 6 ? 0 : 1);
    }
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    show_bytes("the pipe", bytes, NEED(read(pipe[0], bytes, sizeof bytes)));
    child = vfork();
    if (child == 0) {
        close(pair.server);
        int null = open("/dev/null", O_WRONLY);
        dup2(pipe[1], null);
        _exit(null == pair.server && write(null, "again", 5) == 5 ? 0 : 1);
    }
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    show_bytes("the pipe", bytes, NEED(read(pipe[0], bytes, sizeof bytes)));
    SHOW(send(pair.client, "kept", 4, 0));
    show_bytes("server", bytes, NEED(recv(pair.server, bytes, sizeof bytes, 0)));
    SHOW(send(pair.server, "both", 4, 0));
    show_bytes("client", bytes, NEED(recv(pair.client, bytes, sizeof bytes, 0)));
    for (int number = FIRST_HIDDEN; number < FIRST_HIDDEN + 4; number++)
        replace_in_child(number);
    return 0;
}
