/* Functions that read and write a descriptor inside libc: what they do on a connection is what they do on TCP, and what the
 * program sends and receives before and after keeps its order. */
#include "transcript.h"
#include <aio.h>
#include <execinfo.h>
#include <sys/eventfd.h>

static char bytes[4096];

static void ends(struct aiocb *block)
{
    const struct aiocb *list[] = {block};
    while (aio_error(block) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    SHOW(aio_error(block));
    SHOW(aio_return(block));
}

static void ends64(struct aiocb64 *block)
{
    const struct aiocb64 *list[] = {block};
    while (aio_error64(block) == EINPROGRESS)
        aio_suspend64(list, 1, NULL);
    SHOW(aio_error64(block));
    SHOW(aio_return64(block));
}

enum { READ, WRITE, READ64, WRITE64, LIST, LIST64, EVENT_READ, EVENT_WRITE, FRAMES, WAYS };

static void by_way(int way, struct pair pair)
{
    char text[16] = "inside";
    struct aiocb block = {.aio_fildes = pair.server, .aio_buf = text, .aio_nbytes = 6}, other = block, *list[] = {&block, NULL, &other};
    struct aiocb64 block64 = {.aio_fildes = pair.server, .aio_buf = text, .aio_nbytes = 6}, *list64[] = {&block64};
    uint64_t value = 0x6261626162616261;
    void *frames[] = {NULL, NULL};
    switch (way) {
    case READ:
        SHOW(aio_read(&block));
        ends(&block);
        break;
    case WRITE:
        SHOW(aio_write(&block));
        ends(&block);
        break;
    case READ64:
        SHOW(aio_read64(&block64));
        ends64(&block64);
        break;
    case WRITE64:
        SHOW(aio_write64(&block64));
        ends64(&block64);
        break;
    case LIST:
        block.aio_lio_opcode = LIO_READ;
        other.aio_lio_opcode = LIO_NOP;
        SHOW(lio_listio(LIO_WAIT, list, 3, NULL));
        ends(&block);
        break;
    case LIST64:
        block64.aio_lio_opcode = LIO_WRITE;
        SHOW(lio_listio64(LIO_WAIT, list64, 1, NULL));
        ends64(&block64);
        break;
    case EVENT_READ:
        SHOW(eventfd_read(pair.server, &value));
        show_bytes("value", &value, sizeof value);
        break;
    case EVENT_WRITE:
        SHOW(eventfd_write(pair.server, value));
        break;
    case FRAMES:
        backtrace_symbols_fd(frames, 2, pair.server);
        break;
    }
    show_bytes("text", text, 6);
}

int main(void)
{
    for (int way = 0; way < WAYS; way++) {
        struct pair pair = promoted();
        say("way %d", way);
        SHOW(send(pair.server, "before ", 7, 0));
        SHOW(send(pair.client, "is to be read, and more", 23, 0));
        by_way(way, pair);
        SHOW(send(pair.server, " after", 6, 0));
        SHOW(shutdown(pair.server, SHUT_WR));
        size_t got = 0;
        for (ssize_t count; (count = NEED(recv(pair.client, bytes + got, sizeof bytes - got, 0))) > 0;)
            got += count;
        show_bytes("sent", bytes, got);
        SHOW(shutdown(pair.client, SHUT_WR));
        got = 0;
        for (ssize_t count; (count = NEED(recv(pair.server, bytes + got, sizeof bytes - got, 0))) > 0;)
            got += count;
        show_bytes("left", bytes, got);
        close(pair.client);
        close(pair.server);
    }
    return 0;
}
