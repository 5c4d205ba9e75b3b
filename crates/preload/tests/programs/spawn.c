/* vfork(2) and posix_spawn(3) of programs that have nothing to do with the connection: what the
 * child does to its descriptors is its own business. */
#include "transcript.h"
#include <spawn.h>

extern char **environ;

int main(void)
{
    struct pair pair = promoted();
    NEED(fcntl(pair.client, F_SETFD, FD_CLOEXEC));
    NEED(fcntl(pair.server, F_SETFD, FD_CLOEXEC));
    int status;
    char *arguments[] = {"true", NULL};
    pid_t child = vfork();
    if (child == 0) {
        close(pair.client);
        dup2(STDOUT_FILENO, pair.server);
        close_range(50, 60, 0);
        execv("/bin/true", arguments);
        _exit(9);
    }
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    used(pair);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, pair.client);
    SHOW(posix_spawn(&child, "/bin/true", &actions, NULL, arguments, environ));
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    used(pair);
    SHOW(system("exit 3"));
    used(pair);
    FILE *out = popen("echo from a child", "r");
    char line[64] = "";
    if (!fgets(line, sizeof line, out))
        fail("fgets");
    say("%.17s", line);
    SHOW(pclose(out));
    used(pair);
    /* fork and exec, as shells do. */
    child = NEED(fork());
    if (child == 0) {
        execv("/bin/true", arguments);
        _exit(9);
    }
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    used(pair);
    return 0;
}
