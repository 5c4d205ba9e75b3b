/* A ring that is made and entered through syscall(2), as libuv's are. */
#ifndef RING_H
#define RING_H
#include "transcript.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif

enum { ENTRIES = 8 };

struct ring {
    int fd;
    struct io_uring_params params;
    char *words, *entries;
    size_t length;
    unsigned stride, queued;
};

static UNUSED unsigned *word(struct ring *ring, unsigned offset)
{
    return (unsigned *)(ring->words + offset);
}

/* False: this kernel has no ring of such a form. */
static UNUSED bool make(struct ring *ring, unsigned flags)
{
    *ring = (struct ring){.params.flags = flags, .stride = flags & IORING_SETUP_SQE128 ? 128 : 64};
    ring->fd = syscall(SYS_io_uring_setup, ENTRIES, &ring->params);
    if (ring->fd < 0)
        return false;
    struct io_uring_params *params = &ring->params;
    size_t submissions = params->sq_off.array + params->sq_entries * sizeof(unsigned);
    size_t completions = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    ring->length = submissions > completions ? submissions : completions;
    ring->words = mmap(NULL, ring->length, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->entries =
        mmap(NULL, ENTRIES * ring->stride, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    if (ring->words == MAP_FAILED || ring->entries == MAP_FAILED)
        fail("a mapping of the ring");
    return true;
}

static UNUSED struct io_uring_sqe *queue(struct ring *ring, int operation, int fd, unsigned long data)
{
    unsigned place = (*word(ring, ring->params.sq_off.tail) + ring->queued++) & (ENTRIES - 1);
    /* Not in their order, where they need not be. */
    unsigned number = place ^ (ring->params.flags & IORING_SETUP_NO_SQARRAY ? 0 : 1);
    if (!(ring->params.flags & IORING_SETUP_NO_SQARRAY))
        word(ring, ring->params.sq_off.array)[place] = number;
    struct io_uring_sqe *entry = (void *)(ring->entries + number * ring->stride);
    memset(entry, 0, ring->stride);
    entry->opcode = operation;
    entry->fd = fd;
    entry->user_data = data;
    return entry;
}

static UNUSED void queue_control(struct ring *ring, int set, int operation, int fd, struct epoll_event *event)
{
    struct io_uring_sqe *entry = queue(ring, IORING_OP_EPOLL_CTL, set, operation);
    entry->len = operation;
    entry->off = fd;
    entry->addr = (unsigned long)event;
}

/* One that moves bytes. */
static UNUSED struct io_uring_sqe *queue_bytes(
    struct ring *ring, int operation, int fd, unsigned long data, const void *bytes, unsigned length)
{
    struct io_uring_sqe *entry = queue(ring, operation, fd, data);
    entry->addr = (unsigned long)bytes;
    entry->len = length;
    return entry;
}

static UNUSED int submit(struct ring *ring, unsigned wanted)
{
    unsigned *tail = word(ring, ring->params.sq_off.tail), count = ring->queued;
    __atomic_store_n(tail, *tail + count, __ATOMIC_RELEASE);
    ring->queued = 0;
    return syscall(SYS_io_uring_enter, ring->fd, count, wanted, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* The next completion, if there is one. */
static UNUSED bool completed(struct ring *ring, struct io_uring_cqe *cqe)
{
    unsigned *head = word(ring, ring->params.cq_off.head), *tail = word(ring, ring->params.cq_off.tail);
    if (*head == __atomic_load_n(tail, __ATOMIC_ACQUIRE))
        return false;
    struct io_uring_cqe *cqes = (void *)(ring->words + ring->params.cq_off.cqes);
    *cqe = cqes[*head & (ring->params.cq_entries - 1)];
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return true;
}

static int by_number(const void *one, const void *other)
{
    const struct io_uring_cqe *a = one, *b = other;
    return a->user_data != b->user_data ? (a->user_data < b->user_data ? -1 : 1) : b->res - a->res;
}

/* Submits what is queued and shows what came of all. */
static UNUSED void finish(struct ring *ring, const char *what, unsigned wanted)
{
    /* They come in any order. */
    struct io_uring_cqe all[2 * ENTRIES];
    unsigned count = 0;
    errno = UNTOUCHED;
    shown(what, submit(ring, wanted));
    while (count < 2 * ENTRIES && completed(ring, &all[count]))
        count++;
    qsort(all, count, sizeof *all, by_number);
    for (unsigned place = 0; place < count; place++)
        say("  %llu: %d", (unsigned long long)all[place].user_data, all[place].res);
}

/* The descriptor that the next completion is, which has to be there. */
static UNUSED int completed_fd(struct ring *ring)
{
    struct io_uring_cqe cqe;
    if (!completed(ring, &cqe))
        fail("no completion");
    errno = -cqe.res;
    return NEED(cqe.res);
}

/* Tries what is to be tried with a ring of each form, where the kernel has it. */
static UNUSED void with_each(const unsigned *forms, unsigned count, void (*tries)(struct ring *))
{
    struct ring ring;
    for (unsigned form = 0; form < count; form++) {
        if (!make(&ring, forms[form])) {
            say("no ring of form %u: %s", form, strerrorname_np(errno));
            used(promoted());
            continue;
        }
        say("form %u", form);
        tries(&ring);
        close(ring.fd);
    }
}
#endif
