/* Every call that executes a program in this one's place: it inherits a connection by its number,
 * and goes on with it. */
#include "transcript.h"

extern char **environ;
static const char *self;
static char number[16];

static void execute(int way)
{
    char *words[] = {(char *)self, number, "two", "three", "four", "five", "six", "seven", NULL};
    switch (way) {
    case 0:
        execl(self, self, number, "two", "three", "four", "five", "six", "seven", NULL);
        return;
    case 1:
        execlp(self, self, number, "two", "three", "four", "five", "six", "seven", NULL);
        return;
    case 2:
        execle(self, self, number, "two", "three", "four", "five", "six", "seven", NULL, environ);
        return;
    case 3:
        execv(self, words);
        return;
    case 4:
        execvp(self, words);
        return;
    case 5:
        execve(self, words, environ);
        return;
    case 6:
        execvpe(self, words, environ);
        return;
    case 7:
        fexecve(NEED(open(self, O_RDONLY | O_CLOEXEC)), words, environ);
        return;
    case 8:
        execveat(AT_FDCWD, self, words, environ, 0);
        return;
    case 9:
        syscall(SYS_execve, self, words, environ);
        return;
    case 10:
        syscall(SYS_execveat, AT_FDCWD, self, words, environ, 0);
        return;
    }
}

int main(int count, char **arguments)
{
    if (count > 1) {
        int fd = atoi(arguments[1]);
        char bytes[16] = {0};
        if (count != 8 || strcmp(arguments[7], "seven") || !getenv("PATH"))
            return 4;
        if (send(fd, "executed", 8, 0) != 8 || recv(fd, bytes, 4, MSG_WAITALL) != 4)
            return 5;
        return memcmp(bytes, "here", 4) ? 6 : 0;
    }
    self = realpath("/proc/self/exe", NULL);
    for (int way = 0; way < 11; way++) {
        say("# %d", way);
        struct pair pair = promoted();
        pid_t child = NEED(fork());
        if (child == 0) {
            close(pair.client);
            snprintf(number, sizeof number, "%d", pair.server);
            execute(way);
            _exit(9);
        }
        close(pair.server);
        char bytes[16] = {0};
        SHOW(recv(pair.client, bytes, 8, MSG_WAITALL));
        show_bytes("recv", bytes, 8);
        SHOW(send(pair.client, "here", 4, 0));
        status_of(child);
        SHOW(recv(pair.client, bytes, 8, 0));
        close(pair.client);
    }
    /* What cannot be executed leaves everything as it was. */
    struct pair pair = promoted();
    SHOW(execl("/nowhere", "nowhere", "at", "all", NULL));
    SHOW(execlp("no-such-program", "no", NULL));
    SHOW(execle("/nowhere", "nowhere", NULL, environ));
    used(pair);
    return 0;
}
