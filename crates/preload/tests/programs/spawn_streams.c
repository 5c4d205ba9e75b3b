/* Programs that are started beside this one while a stream lies unread, more than any ring holds: they know nothing of it,
 * and it goes on. */
#include "transcript.h"
#include <spawn.h>

extern char **environ;

enum { STEPS = 4 };
static const char *const ways[] = {"system", "popen", "posix_spawn", "fork", "vfork"};

static void start(int way)
{
    char *words[] = {"true", NULL};
    pid_t child = -1;
    int status = -1;
    switch (way) {
    case 0:
        say("system: %d", system("true"));
        return;
    case 1: {
        FILE *out = popen("true", "r");
        if (!out)
            fail("popen");
        say("pclose: %d", pclose(out));
        return;
    }
    case 2:
        if ((errno = posix_spawnp(&child, "true", NULL, NULL, words, environ)) != 0)
            fail("posix_spawnp");
        break;
    case 3:
        if ((child = NEED(fork())) == 0) {
            execvp("true", words);
            _exit(9);
        }
        break;
    default:
        if ((child = NEED(vfork())) == 0) {
            execvp("true", words);
            _exit(9);
        }
    }
    NEED(waitpid(child, &status, 0));
    say("%s: %d", ways[way], status);
}

int main(void)
{
    static unsigned char bytes[30000];
    for (int way = 0; way < 5; way++) {
        struct pair pair = promoted();
        NEED(fcntl(pair.server, F_SETFL, O_NONBLOCK));
        uint64_t sent = 0, got = 0;
        for (int step = 0; step < STEPS; step++) {
            /* Little is read: the ring holds more, and so does the kernel. */
            for (;;) {
                fill(bytes, sent, sizeof bytes);
                ssize_t count = send(pair.server, bytes, sizeof bytes, 0);
                if (count < 0)
                    break;
                sent += count;
            }
            for (int piece = 0; piece < 2 && got < sent; piece++) {
                ssize_t count = NEED(recv(pair.client, bytes, sizeof bytes, 0));
                if (!same(bytes, got, count))
                    fail("other bytes");
                got += count;
            }
            start(way);
        }
        SHOW(fcntl(pair.client, F_GETFD));
        NEED(shutdown(pair.server, SHUT_WR));
        ssize_t count;
        while ((count = NEED(recv(pair.client, bytes, sizeof bytes, 0))) > 0) {
            if (!same(bytes, got, count))
                fail("other bytes");
            got += count;
        }
        say("%s: all came: %d", ways[way], got == sent);
        close(pair.client);
        close(pair.server);
    }
    return 0;
}
