/* read(2), write(2), readv(2) and writev(2), blocking and not. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[64] = {0}, more[8] = {0};
    SHOW(write(pair.client, "hello, world", 12));
    SHOW(read(pair.server, bytes, 5));
    show_bytes("read", bytes, 5);
    SHOW(read(pair.server, bytes, sizeof bytes));
    show_bytes("read", bytes, 7);

    struct iovec out[4] = {{"one", 3}, {"", 0}, {"two and ", 8}, {"three", 5}};
    SHOW(writev(pair.server, out, 4));
    struct iovec in[3] = {{bytes, 4}, {NULL, 0}, {more, sizeof more}};
    memset(bytes, 0, sizeof bytes);
    SHOW(readv(pair.client, in, 3));
    show_bytes("first piece", bytes, 4);
    show_bytes("last piece", more, sizeof more);
    SHOW(read(pair.client, bytes, 64));
    show_bytes("rest", bytes, 4);

    /* Several writes are one stream. */
    SHOW(write(pair.client, "ab", 2));
    SHOW(write(pair.client, "cd", 2));
    SHOW(write(pair.client, "ef", 2));
    SHOW(read(pair.server, bytes, 5));
    show_bytes("read", bytes, 5);
    SHOW(read(pair.server, bytes, 5));

    nonblocking(pair.server);
    SHOW(read(pair.server, bytes, sizeof bytes));
    struct iovec one = {bytes, sizeof bytes};
    SHOW(readv(pair.server, &one, 1));
    SHOW(write(pair.client, "x", 1));
    wait_for(pair.server, 1);
    SHOW(readv(pair.server, &one, 1));
    SHOW(read(pair.server, bytes, 1));
    nonblocking(pair.client);
    SHOW(writev(pair.client, out, 4));
    wait_for(pair.server, 16);
    SHOW(read(pair.server, bytes, sizeof bytes));
    show_bytes("read", bytes, 16);

    SHOW(pread(pair.server, bytes, 4, 0));
    SHOW(pwrite(pair.server, bytes, 4, 0));
    SHOW(lseek(pair.server, 0, SEEK_CUR));
    SHOW(close(pair.client));
    /* On a busy machine the end takes its time. */
    NEED(poll(&(struct pollfd){.fd = pair.server, .events = POLLIN}, 1, 5000) - 1);
    SHOW(read(pair.server, bytes, 8));
    SHOW(close(pair.server));
    SHOW(close(pair.server));
    SHOW(read(pair.server, bytes, 8));
    return 0;
}
