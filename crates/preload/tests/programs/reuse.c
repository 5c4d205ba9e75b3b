/* Numbers of sockets that were closed, used again by files and pipes: by close, dup2 over them,
 * and by closes that no library sees (fclose of a stream). */
#include "transcript.h"

static void is_a_file(int number)
{
    char bytes[8] = {0};
    SHOW(pread(number, bytes, 4, 0));
    SHOW(read(number, bytes, 4));
    show_bytes("file", bytes, 4);
    SHOW(send(number, "x", 1, 0));
}

int main(void)
{
    char name[] = "reused-XXXXXX", bytes[16];
    int file = NEED(mkstemp(name));
    NEED(unlink(name));
    SHOW(write(file, "contents", 8));
    for (int way = 0; way < 5; way++) {
        say("# way %d", way);
        struct pair pair = promoted();
        int number = pair.server;
        char path[64];
        int hole;
        while ((hole = NEED(open("/dev/null", O_RDONLY))) < number)
            ;
        NEED(close(hole));
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        switch (way) {
        case 0:
            NEED(close(number));
            if (NEED(open(path, O_RDONLY)) != number)
                fail("another number");
            break;
        case 1:
            NEED(dup2(file, number));
            lseek(file, 0, SEEK_SET);
            break;
        case 2: {
            /* Two names of one open file: the stream closes the number behind everyone's back. */
            FILE *stream = fdopen(number, "r");
            fclose(stream);
            if (NEED(open(path, O_RDONLY)) != number)
                fail("another number");
            break;
        }
        case 3:
            NEED(close_range(number, number, 0));
            if (NEED(openat(AT_FDCWD, path, O_RDONLY)) != number)
                fail("another number");
            break;
        case 4:
            NEED(syscall(SYS_close, number));
            lseek(file, 0, SEEK_SET);
            if (NEED(dup(file)) != number)
                fail("another number");
            break;
        }
        is_a_file(number);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        NEED(close(number));
        int pipes[2];
        NEED(pipe(pipes)); /* takes the number */
        SHOW(write(pipes[1], "pipe", 4));
        SHOW(read(pipes[0], bytes, sizeof bytes));
        close(pipes[0]);
        close(pipes[1]);
        close(pair.client);
    }
    return 0;
}
