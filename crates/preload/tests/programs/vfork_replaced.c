/* The child of a vfork(2) puts another file at a socket's number, and uses it: that is its own business. */
#include "transcript.h"

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
    return 0;
}
