/* dprintf(3) and vdprintf(3), which write without a stream. */
#include "transcript.h"

static int written(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int count = vdprintf(fd, format, arguments);
    va_end(arguments);
    return count;
}

int main(void)
{
    struct pair pair = promoted();
    char bytes[256], name[] = "printed-XXXXXX";
    SHOW(dprintf(pair.client, "plain"));
    take_all(pair.server, bytes, 5);
    show_bytes("recv", bytes, 5);
    int count = SHOW(dprintf(pair.client, "%s %d %ld %.3f %c %s %d %d %f", "some", 1, 2L, 3.5, 'x', "more", 4, 5, 6.25));
    take_all(pair.server, bytes, count);
    show_bytes("recv", bytes, count);
    count = SHOW(written(pair.client, "%d %d %d %d %d %d %s %.1f", 1, 2, 3, 4, 5, 6, "seven", 8.0));
    take_all(pair.server, bytes, count);
    show_bytes("recv", bytes, count);
    SHOW(send(pair.client, "behind", 6, 0));
    take_all(pair.server, bytes, 6);
    show_bytes("recv", bytes, 6);
    SHOW(dprintf(pair.client, "%s", ""));
    /* More than any buffer on the way. */
    char *large = malloc(100001);
    memset(large, 'z', 100000);
    large[100000] = 0;
    SHOW(dprintf(pair.client, "%s", large));
    long found = 0;
    for (long left = 100000; left > 0;) {
        ssize_t took = NEED(recv(pair.server, bytes, sizeof bytes, 0));
        for (ssize_t at = 0; at < took; at++)
            found += bytes[at] == 'z';
        left -= took;
    }
    say("%ld of z", found);
    /* A socket that does not wait takes a part, which is told as an error. */
    nonblocking(pair.client);
    for (int round = 0; round < 1000; round++)
        if (dprintf(pair.client, "%s", large) < 0) {
            say("full: %s", strerrorname_np(errno));
            break;
        }
    signal(SIGPIPE, SIG_IGN);
    close(pair.server);
    SHOW(dprintf(pair.client, "late") < 0);
    SHOW(dprintf(-1, "nowhere"));
    int file = NEED(mkstemp(name));
    NEED(unlink(name));
    SHOW(dprintf(file, "%d %.2f", 7, 1.25));
    SHOW(pread(file, bytes, sizeof bytes, 0));
    show_bytes("file", bytes, 6);
    return 0;
}
