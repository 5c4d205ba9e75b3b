/* Programs that are started beside this one and inherit a connection by its number: posix_spawn,
 * posix_spawnp, vfork and exec, system, popen. They use it, and then this process does again. */
#include "transcript.h"
#include <spawn.h>

extern char **environ;

static pid_t spawned(int way, int fd)
{
    pid_t child = -1;
    char command[96];
    snprintf(command, sizeof command, "echo ready >&%d; read -r line <&%d; echo \"got $line\" >&%d", fd,
             fd, fd);
    char *words[] = {"sh", "-c", command, NULL};
    switch (way) {
    case 0:
        errno = -posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ);
        return child;
    case 1:
        errno = -posix_spawnp(&child, "sh", NULL, NULL, words, environ);
        return child;
    case 2:
        child = vfork();
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", command, NULL);
            _exit(9);
        }
        return child;
    case 3:
        say("system: %d", system(command));
        return -1;
    default: {
        FILE *out = popen(command, "r");
        if (!out)
            fail("popen");
        say("pclose: %d", pclose(out));
        return -1;
    }
    }
}

static void *answers(void *argument)
{
    struct pair *pair = argument;
    static char bytes[16];
    /* What is sent before the program runs is another matter. */
    take_all(pair->client, bytes, 6);
    send_all(pair->client, "a line\n", 7);
    take_all(pair->client, bytes, 11);
    return bytes;
}

int main(void)
{
    for (int way = 0; way < 5; way++) {
        say("# %d", way);
        struct pair pair = promoted();
        NEED(fcntl(pair.client, F_SETFD, FD_CLOEXEC));
        pthread_t thread;
        pthread_create(&thread, NULL, answers, &pair);
        pid_t child = spawned(way, pair.server);
        if (child > 0) {
            status_of(child);
        }
        void *answer;
        pthread_join(thread, &answer);
        show_bytes("child", answer, 11);
        used(pair);
        close(pair.server);
        close(pair.client);
    }
    return 0;
}
