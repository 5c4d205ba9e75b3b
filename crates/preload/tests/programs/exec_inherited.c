/* exec of a program that inherits a connection: it reads and writes it with plain calls. What is
 * sent to it comes after the exec. */
#include "transcript.h"

static int executed[2];

/* The child has executed its program: its end of the pipe was closed by that. */
static void wait_for_exec(void)
{
    char byte;
    close(executed[1]);
    if (read(executed[0], &byte, 1) != 0)
        fail("exec");
    close(executed[0]);
}

/* cat(1) copies what it is sent until the end. */
static void copies(struct pair pair, bool before)
{
    char *arguments[] = {"cat", NULL};
    if (before)
        SHOW(send(pair.client, "before ", 7, 0));
    NEED(pipe2(executed, O_CLOEXEC));
    pid_t child = NEED(fork());
    if (child == 0) {
        dup2(pair.server, STDIN_FILENO);
        dup2(pair.server, STDOUT_FILENO);
        close(pair.server);
        close(pair.client);
        if (before && recv(STDIN_FILENO, (char[7]){0}, 7, MSG_WAITALL) != 7)
            _exit(8);
        execv("/bin/cat", arguments);
        _exit(9);
    }
    wait_for_exec();
    SHOW(close(pair.server));
    char bytes[64] = {0};
    for (int round = 0; round < 5; round++) {
        SHOW(send(pair.client, "a line\n", 7, 0));
        SHOW(recv(pair.client, bytes, 7, MSG_WAITALL));
        show_bytes("copied", bytes, 7);
        pause_ms(5);
    }
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    status_of(child);
    SHOW(close(pair.client));
}

int main(int count, char **arguments)
{
    if (count > 1) {
        /* What became of an end by exec without a fork. */
        int fd = atoi(arguments[1]);
        char bytes[16] = {0};
        if (send(fd, "executed", 8, 0) != 8 || recv(fd, bytes, 4, MSG_WAITALL) != 4)
            return 5;
        return memcmp(bytes, "here", 4) ? 6 : 0;
    }
    copies(promoted(), false);
    copies(promoted(), true);
    /* The whole process is replaced. */
    struct pair pair = promoted();
    NEED(pipe2(executed, O_CLOEXEC));
    pid_t child = NEED(fork());
    if (child == 0) {
        close(pair.client);
        char number[16];
        snprintf(number, sizeof number, "%d", pair.server);
        char *words[] = {arguments[0], number, NULL};
        execv("/proc/self/exe", words);
        _exit(9);
    }
    wait_for_exec();
    close(pair.server);
    char bytes[16] = {0};
    SHOW(recv(pair.client, bytes, 8, MSG_WAITALL));
    show_bytes("recv", bytes, 8);
    SHOW(send(pair.client, "here", 4, 0));
    status_of(child);
    SHOW(recv(pair.client, bytes, 8, 0));
    return 0;
}
