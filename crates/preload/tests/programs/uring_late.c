/* An io_uring that a program makes when its connection was promoted already: it reads and writes
 * past libc from then on. */
#include "transcript.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

static int ring;
static struct io_uring_params params;
static unsigned char *submitted, *completed;
static struct io_uring_sqe *entries;

/* One operation, from its submission to its completion. */
static int operation(int code, int fd, const void *bytes, unsigned length)
{
    unsigned *tail = (unsigned *)(submitted + params.sq_off.tail);
    unsigned *array = (unsigned *)(submitted + params.sq_off.array);
    unsigned place = *tail & *(unsigned *)(submitted + params.sq_off.ring_mask);
    entries[place] = (struct io_uring_sqe){.opcode = code, .fd = fd, .addr = (uintptr_t)bytes, .len = length};
    array[place] = place;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    NEED(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    unsigned *head = (unsigned *)(completed + params.cq_off.head);
    struct io_uring_cqe *events = (struct io_uring_cqe *)(completed + params.cq_off.cqes);
    int result = events[*head & *(unsigned *)(completed + params.cq_off.ring_mask)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

int main(void)
{
    struct pair pair = promoted();
    char bytes[64];
    ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) {
        say("no io_uring: %s", strerrorname_np(errno));
        return 0;
    }
    submitted = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(unsigned),
                     PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    completed = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe),
                     PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                   IORING_OFF_SQES);
    for (int round = 0; round < 5; round++) {
        SHOW(operation(IORING_OP_SEND, pair.client, "by the ring", 11));
        SHOW(recv(pair.server, bytes, 11, MSG_WAITALL));
        show_bytes("recv", bytes, 11);
        SHOW(send(pair.server, "by libc", 7, 0));
        SHOW(operation(IORING_OP_RECV, pair.client, bytes, sizeof bytes));
        show_bytes("ring", bytes, 7);
        SHOW(operation(IORING_OP_SEND, pair.client, "both", 4));
        SHOW(operation(IORING_OP_RECV, pair.server, bytes, sizeof bytes));
        show_bytes("ring", bytes, 4);
    }
    /* Connections that come later. */
    struct pair later = connected();
    for (int round = 0; round < 20; round++) {
        send_all(later.client, "later", 5);
        take_all(later.server, bytes, 5);
        send_all(later.server, "again", 5);
        take_all(later.client, bytes, 5);
    }
    SHOW(operation(IORING_OP_SEND, later.client, "later", 5));
    SHOW(operation(IORING_OP_RECV, later.server, bytes, sizeof bytes));
    show_bytes("ring", bytes, 5);
    SHOW(close(pair.client));
    SHOW(operation(IORING_OP_RECV, pair.server, bytes, sizeof bytes));
    return 0;
}
