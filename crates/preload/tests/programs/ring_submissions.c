/* An io_uring that is made and entered through syscall(2), as libuv's is: its submissions about sets and sockets, in rings of
 * each form. */
#include "ring.h"

static void controls(struct ring *ring)
{
    struct pair pair = promoted(), other = connected();
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, edge = {.events = EPOLLIN | EPOLLET, .data.u64 = 8};
    char bytes[16];
    queue_control(ring, set, EPOLL_CTL_ADD, pair.server, &event);
    queue_control(ring, set, EPOLL_CTL_ADD, other.server, &event);
    queue(ring, IORING_OP_NOP, -1, 99);
    finish(ring, "two are added", 3);
    show_epoll("nothing", set, 0);
    for (int round = 0; round < 3; round++) {
        NEED(send(pair.client, "x", 1, 0));
        show_epoll("a byte", set, -1);
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    }
    queue_control(ring, set, EPOLL_CTL_ADD, pair.server, &edge);
    finish(ring, "it is there", 1);
    queue_control(ring, set, EPOLL_CTL_MOD, pair.server, &edge);
    queue_control(ring, set, EPOLL_CTL_DEL, other.server, NULL);
    finish(ring, "one has edges, one is gone", 2);
    queue_control(ring, set, EPOLL_CTL_DEL, other.server, NULL);
    queue_control(ring, set, EPOLL_CTL_ADD, -1, &event);
    queue_control(ring, set, 17, pair.server, &event);
    finish(ring, "refused", 3);
    NEED(send(pair.client, "xy", 2, 0));
    show_epoll("an edge", set, -1);
    show_epoll("once", set, 0);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    /* An event that does not lie there. */
    queue_control(ring, set, EPOLL_CTL_MOD, pair.server, (void *)8);
    finish(ring, "no event", 1);
    used(other);
    used(pair);
    close(set);
}

/* What the kernel does itself: such a socket is its own before. */
static void bytes_by_ring(struct ring *ring)
{
    struct pair pair = promoted();
    char room[16] = {0};
    queue_bytes(ring, IORING_OP_READ, pair.server, 1, room, sizeof room);
    finish(ring, "a read", 0);
    SHOW(send(pair.client, "hello", 5, 0));
    finish(ring, "it has", 1);
    show_bytes("bytes", room, 5);
    queue_bytes(ring, IORING_OP_SEND, pair.server, 2, "answer", 6);
    finish(ring, "a send", 1);
    SHOW(recv(pair.client, room, sizeof room, 0));
    show_bytes("bytes", room, 6);

    struct pair polled = promoted();
    queue(ring, IORING_OP_POLL_ADD, polled.server, 3)->poll32_events = POLLIN;
    finish(ring, "a poll", 0);
    SHOW(send(polled.client, "x", 1, 0));
    finish(ring, "it is ready", 1);
    SHOW(recv(polled.server, room, sizeof room, 0));

    struct pair ended = promoted();
    queue(ring, IORING_OP_SHUTDOWN, ended.server, 4)->len = SHUT_WR;
    finish(ring, "a shutdown", 1);
    SHOW(recv(ended.client, room, sizeof room, 0));

    struct pair closed = promoted();
    SHOW(send(closed.server, "last", 4, 0));
    queue(ring, IORING_OP_CLOSE, closed.server, 5);
    finish(ring, "a close", 1);
    SHOW(recv(closed.client, room, sizeof room, MSG_WAITALL));
    SHOW(fcntl(closed.server, F_GETFD));
    close(closed.client);

    /* The number is another's. */
    struct pair next = promoted();
    used(next);

    struct pair registered = promoted();
    int files[2] = {-1, registered.server};
    SHOW(syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_FILES, files, 2));
    queue_bytes(ring, IORING_OP_READ, 1, 6, room, sizeof room)->flags = IOSQE_FIXED_FILE;
    finish(ring, "a read of a registered file", 0);
    SHOW(send(registered.client, "file", 4, 0));
    finish(ring, "it has", 1);
    show_bytes("bytes", room, 4);
}

/* What a ring has accepted is known by its first use, by a ring or by libc. */
static void accepted_by_ring(struct ring *ring, bool receives)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    struct pair pair = {.client = NEED(socket(AF_INET, SOCK_STREAM, 0))};
    NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
    queue(ring, IORING_OP_ACCEPT, listener, 1);
    if (submit(ring, 1) != 1)
        fail("accept");
    pair.server = completed_fd(ring);
    char room[16] = {0}, taken[4];
    if (receives) {
        queue_bytes(ring, IORING_OP_RECV, pair.server, 2, room, sizeof room);
        finish(ring, "it is to receive", 0);
        for (int round = 0; round < 60; round++) {
            NEED(send(pair.server, "pong", 4, 0));
            take_all(pair.client, taken, 4);
        }
        SHOW(send(pair.client, "hello", 5, 0));
        finish(ring, "it has", 1);
        show_bytes("bytes", room, 5);
    }
    used(pair);
    close(listener);
}

/* A queue that the kernel does not take in one call, and operations that name no descriptor. */
static void others(struct ring *ring)
{
    struct pair pair = promoted();
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    struct io_uring_sqe *entry = queue(ring, IORING_OP_NOP, set, 1);
    entry = queue(ring, IORING_OP_CLOSE, 0, 2);
    entry->file_index = 1;
    queue(ring, IORING_OP_CLOSE, ring->fd, 3);
    queue_control(ring, set, EPOLL_CTL_ADD, pair.server, &event);
    finish(ring, "no descriptors", 4);
    SHOW(fcntl(ring->fd, F_GETFD) >= 0);
    NEED(send(pair.client, "x", 1, 0));
    show_epoll("a byte", set, -1);
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    queue(ring, IORING_OP_NOP, -1, 4)->flags = IOSQE_IO_LINK;
    queue(ring, IORING_OP_CLOSE, pair.client, 5);
    finish(ring, "a linked close", 2);
    SHOW(recv(pair.server, &byte, 1, 0));
    close(set);
}

/* After the last, all is the kernel's. */
static void set_by_ring(struct ring *ring)
{
    struct pair pair = promoted(), linked = promoted();
    int set = NEED(epoll_create1(0));
    char byte;
    NEED(add(set, pair.server, EPOLLIN, 1));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    queue(ring, IORING_OP_NOP, -1, 1)->flags = IOSQE_IO_LINK;
    queue_control(ring, set, EPOLL_CTL_ADD, linked.server, &event);
    finish(ring, "linked", 2);
    struct io_uring_sqe *entry = queue(ring, IORING_OP_POLL_ADD, set, 2);
    entry->poll32_events = POLLIN;
    finish(ring, "a poll of the set", 0);
    SHOW(send(pair.client, "x", 1, 0));
    finish(ring, "it is ready", 1);
    show_epoll("one", set, 0);
    SHOW(recv(pair.server, &byte, 1, 0));
    used(connected());
}

static void tries(struct ring *ring)
{
    controls(ring);
    int copy = NEED(dup(ring->fd));
    close(ring->fd);
    ring->fd = copy;
    bytes_by_ring(ring);
    accepted_by_ring(ring, false);
    accepted_by_ring(ring, true);
    others(ring);
}

int main(void)
{
    const unsigned forms[] = {0, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128};
    struct ring ring;
    with_each(forms, sizeof forms / sizeof *forms, tries);
    if (make(&ring, 0))
        set_by_ring(&ring);
    return 0;
}
