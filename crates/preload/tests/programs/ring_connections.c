/* What a ring does to connections beside moving their bytes: it connects, accepts and shuts down. They are promoted all the
 * same, and stay so. */
#include "ring.h"

#ifndef IORING_ACCEPT_MULTISHOT
#define IORING_ACCEPT_MULTISHOT 1
#endif
enum { FIXED_FD_INSTALL = 54 };

/* In memory, if connections are promoted at all. */
static void need_memory(int from, int to)
{
    char bytes[PING] = {0};
    uint64_t before = came_by_tcp(to);
    send_all(from, bytes, PING);
    take_all(to, bytes, PING);
    if (eager() && came_by_tcp(to) - before >= PING) {
        errno = 0;
        fail("the connection is on TCP");
    }
}

/* Both ways, whatever waits that it began with left. */
static void need_pair_in_memory(struct pair pair)
{
    warm(pair);
    need_memory(pair.client, pair.server);
    need_memory(pair.server, pair.client);
    used(pair);
}

static void queue_connect(struct ring *ring, int fd, struct sockaddr_in *at, unsigned long data)
{
    struct io_uring_sqe *entry = queue(ring, IORING_OP_CONNECT, fd, data);
    entry->addr = (unsigned long)at;
    entry->off = sizeof *at;
}

static void connects(struct ring *ring, int flags)
{
    struct sockaddr_in at, nobody = {.sin_family = AF_UNSPEC};
    int listener = listening(&at);
    struct pair pair = {.client = NEED(socket(AF_INET, SOCK_STREAM | flags, 0))};
    queue_connect(ring, pair.client, &at, 1);
    finish(ring, "a connect", 1);
    pair.server = NEED(accept(listener, NULL, NULL));
    NEED(fcntl(pair.client, F_SETFL, 0));
    need_pair_in_memory(pair);
    char byte;
    queue_connect(ring, pair.client, &at, 2);
    finish(ring, "it is connected", 1);
    used(pair);
    queue_connect(ring, pair.client, &nobody, 3);
    finish(ring, "to nobody", 1);
    SHOW(recv(pair.server, &byte, 1, 0));
    close(pair.server);
    SHOW(connect(pair.client, (struct sockaddr *)&at, sizeof at));
    pair.server = NEED(accept(listener, NULL, NULL));
    used(pair);
    close(pair.client);
    SHOW(recv(pair.server, &byte, 1, 0));
    close(pair.server);

    pair.client = NEED(socket(AF_INET, SOCK_STREAM | flags, 0));
    close(listener);
    queue_connect(ring, pair.client, &at, 4);
    finish(ring, "nobody listens", 1);
    close(pair.client);
}

static void queue_shutdown(struct ring *ring, int fd, int how)
{
    queue(ring, IORING_OP_SHUTDOWN, fd, how)->len = how;
}

static void shuts_down(struct ring *ring)
{
    char room[16];
    struct pair half = promoted();
    queue_shutdown(ring, half.server, 7);
    finish(ring, "no such way", 1);
    queue_shutdown(ring, half.server, SHUT_WR);
    NEED(send(half.server, "last", 4, 0));
    finish(ring, "a shutdown", 1);
    SHOW(recv(half.client, room, sizeof room, 0));
    need_memory(half.client, half.server);
    queue_shutdown(ring, half.server, SHUT_WR);
    finish(ring, "twice", 1);
    need_memory(half.client, half.server);
    SHOW(recv(half.client, room, sizeof room, 0));
    SHOW(send(half.server, "more", 4, MSG_NOSIGNAL));
    SHOW(shutdown(half.client, SHUT_WR));
    SHOW(recv(half.server, room, sizeof room, 0));
    close(half.client);
    close(half.server);

    struct pair read = promoted();
    queue_shutdown(ring, read.server, SHUT_RD);
    finish(ring, "no more reads", 1);
    SHOW(recv(read.server, room, sizeof room, 0));
    SHOW(send(read.server, "still", 5, 0));
    SHOW(recv(read.client, room, sizeof room, 0));
    close(read.client);
    close(read.server);

    struct pair both = promoted();
    NEED(send(both.client, "unread", 6, 0));
    queue_shutdown(ring, both.server, SHUT_RDWR);
    finish(ring, "both ways", 1);
    SHOW(recv(both.client, room, sizeof room, 0));
    SHOW(recv(both.server, room, sizeof room, 0));
    SHOW(recv(both.server, room, sizeof room, 0));
    close(both.client);
    close(both.server);

    /* What it is linked to comes first, or not at all. */
    struct pair linked = promoted();
    struct io_uring_sqe *first = queue_bytes(ring, IORING_OP_READ, -1, 1, room, 1);
    first->flags = IOSQE_IO_LINK;
    queue_shutdown(ring, linked.server, SHUT_WR);
    finish(ring, "behind a failure", 2);
    used(linked);
    queue(ring, IORING_OP_SHUTDOWN, linked.server, 3)->off = 1;
    finish(ring, "it has no offset", 1);
    used(linked);
    close(linked.client);
    close(linked.server);

    int fresh = NEED(socket(AF_INET, SOCK_STREAM, 0));
    queue_shutdown(ring, fresh, SHUT_WR);
    finish(ring, "not connected", 1);
    close(fresh);
    struct sockaddr_in at;
    int listener = listening(&at);
    queue_shutdown(ring, listener, SHUT_RD);
    finish(ring, "a listener", 1);
    SHOW(accept(listener, NULL, NULL));
    close(listener);
}

static void accepts(struct ring *ring)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    struct pair pairs[2];
    /* Numbers of other files, before. */
    int files[4];
    for (int file = 0; file < 4; file++)
        files[file] = NEED(open("/dev/null", O_RDONLY));
    struct io_uring_sqe *entry = queue(ring, IORING_OP_ACCEPT, listener, 1);
    entry->ioprio = IORING_ACCEPT_MULTISHOT;
    finish(ring, "a multishot accept", 0);
    for (int place = 0; place < 2; place++)
        pairs[place].client = NEED(socket(AF_INET, SOCK_STREAM, 0));
    for (int file = 0; file < 4; file++)
        close(files[file]);
    for (int place = 0; place < 2; place++) {
        NEED(connect(pairs[place].client, (struct sockaddr *)&at, sizeof at));
        NEED(syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
        pairs[place].server = completed_fd(ring);
    }
    for (int place = 0; place < 2; place++) {
        need_pair_in_memory(pairs[place]);
        close(pairs[place].client);
        close(pairs[place].server);
    }
    queue(ring, IORING_OP_ASYNC_CANCEL, -1, 2)->addr = 1;
    finish(ring, "no more", 2);

    /* Into a registered file, which has no number until it is given one: then both may be used. */
    struct pair direct = {.client = NEED(socket(AF_INET, SOCK_STREAM, 0))};
    int none[2] = {-1, -1};
    NEED(syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_FILES, none, 2));
    queue(ring, IORING_OP_ACCEPT, listener, 3)->file_index = 2;
    NEED(connect(direct.client, (struct sockaddr *)&at, sizeof at));
    finish(ring, "a direct accept", 1);
    struct io_uring_cqe cqe;
    queue(ring, FIXED_FD_INSTALL, 1, 4)->flags = IOSQE_FIXED_FILE;
    if (submit(ring, 1) != 1 || !completed(ring, &cqe))
        fail("install");
    if (cqe.res < 0) {
        say("no FIXED_FD_INSTALL: %s", strerrorname_np(-cqe.res));
    } else {
        char room[16];
        direct.server = cqe.res;
        for (int round = 0; round < 64; round++)
            ping(direct);
        SHOW(send(direct.client, "direct", 6, 0));
        queue_bytes(ring, IORING_OP_RECV, 1, 5, room, sizeof room)->flags = IOSQE_FIXED_FILE;
        finish(ring, "a read of the registered file", 1);
        show_bytes("bytes", room, 6);
        close(direct.server);
    }
    close(direct.client);
    close(listener);
}

/* Several submissions in one call, which the kernel runs in their order. */
static void ends_in_order(struct ring *ring)
{
    char room[16] = "last";
    struct pair shut = promoted();
    queue_bytes(ring, IORING_OP_SEND, shut.server, 1, room, 4);
    queue_shutdown(ring, shut.server, SHUT_WR);
    finish(ring, "a send, and a shutdown", 2);
    SHOW(recv(shut.client, room, sizeof room, 0));
    SHOW(recv(shut.client, room, sizeof room, 0));
    close(shut.client);
    close(shut.server);

    struct pair closed = promoted();
    SHOW(send(closed.server, "first", 5, 0));
    queue(ring, IORING_OP_CLOSE, closed.server, 1);
    queue_bytes(ring, IORING_OP_READ, closed.client, 2, room, sizeof room)->off = -1;
    finish(ring, "a close, and a read of the other end", 2);
    show_bytes("bytes", room, 5);
    SHOW(recv(closed.client, room, sizeof room, 0));
    close(closed.client);

    struct pair sent = promoted();
    SHOW(send(sent.server, "first", 5, 0));
    queue_bytes(ring, IORING_OP_SEND, sent.server, 1, " last", 5);
    queue(ring, IORING_OP_CLOSE, sent.server, 2);
    queue_bytes(ring, IORING_OP_READ, sent.client, 3, room, sizeof room)->off = -1;
    finish(ring, "a send, a close, and a read of the other end", 3);
    show_bytes("bytes", room, 10);
    SHOW(recv(sent.client, room, sizeof room, 0));
    close(sent.client);

    struct sockaddr_in at;
    struct io_uring_cqe cqe;
    int listener = listening(&at);
    int client = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(client, (struct sockaddr *)&at, sizeof at));
    /* Then the accept is done first. */
    NEED(poll(&(struct pollfd){listener, POLLIN, 0}, 1, PATIENCE_MS));
    queue(ring, IORING_OP_ACCEPT, listener, 1);
    queue_shutdown(ring, listener, SHUT_RDWR);
    if (submit(ring, 2) != 2)
        fail("an accept, and a shutdown of the listener");
    int server = -1, status = 1;
    while (completed(ring, &cqe))
        *(cqe.res > 0 ? &server : &status) = cqe.res;
    say("shut down: %d", status);
    SHOW(accept(listener, NULL, NULL));
    used((struct pair){client, server});
    close(client);
    close(server);
    close(listener);
}

/* It is sent to somebody, and closed: one process may be both. */
static void hands_over(struct ring *ring)
{
    struct pair pair = promoted();
    int ends[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    char byte = 'x';
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {{.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control};
    message.msg_controllen = sizeof control;
    memcpy(CMSG_DATA(&control.header), &pair.server, sizeof(int));
    SHOW(send(pair.client, "unread", 6, 0));
    queue_bytes(ring, IORING_OP_SENDMSG, ends[0], 1, &message, 1);
    queue(ring, IORING_OP_CLOSE, pair.server, 2);
    finish(ring, "a message with it, and a close", 2);
    message.msg_controllen = sizeof control;
    SHOW(recvmsg(ends[1], &message, MSG_DONTWAIT));
    memcpy(&pair.server, CMSG_DATA(&control.header), sizeof(int));
    char room[16];
    SHOW(recv(pair.server, room, sizeof room, 0));
    used(pair);
    close(pair.client);
    close(pair.server);
    close(ends[0]);
    close(ends[1]);
}

/* Until the other end's FIN is here. */
static void until_ended(int fd)
{
    /* net/tcp_states.h */
    enum { CLOSED = 7, CLOSE_WAIT = 8 };
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    for (long end = milliseconds() + PATIENCE_MS; milliseconds() < end; usleep(200)) {
        NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
        if (info.tcpi_state == CLOSE_WAIT || info.tcpi_state == CLOSED)
            return;
    }
}

/* A connection that has ended over unread bytes goes on in its set. */
static void outlives(struct ring *ring)
{
    struct pair pair = promoted();
    char room[16];
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.client, EPOLLIN, 7));
    SHOW(send(pair.server, "left", 4, 0));
    close(pair.server);
    until_ended(pair.client);
    queue(ring, IORING_OP_POLL_ADD, pair.client, 1)->poll32_events = POLLIN;
    finish(ring, "a poll", 1);
    show_epoll("in its set", set, -1);
    SHOW(recv(pair.client, room, sizeof room, 0));
    show_epoll("its end", set, -1);
    SHOW(recv(pair.client, room, sizeof room, 0));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pair.client, NULL));
    close(pair.client);
    close(set);

    struct pair half = promoted();
    SHOW(shutdown(half.client, SHUT_WR));
    SHOW(recv(half.server, room, sizeof room, 0));
    SHOW(send(half.server, "left", 4, 0));
    close(half.server);
    until_ended(half.client);
    queue(ring, IORING_OP_POLL_ADD, half.client, 2)->poll32_events = POLLIN;
    finish(ring, "a poll of one that sends no more", 1);
    SHOW(send(half.client, "more", 4, MSG_NOSIGNAL));
    SHOW(recv(half.client, room, sizeof room, 0));
    SHOW(recv(half.client, room, sizeof room, 0));
    close(half.client);
}

/* More is asked for than there is: the kernel takes what there is, and waits for nothing. */
static void counts(struct ring *ring)
{
    struct io_uring_cqe cqe;
    queue(ring, IORING_OP_NOP, -1, 1);
    unsigned *tail = word(ring, ring->params.sq_off.tail);
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    ring->queued = 0;
    SHOW(syscall(SYS_io_uring_enter, ring->fd, 1000, 2, IORING_ENTER_GETEVENTS, NULL, 0));
    say("completed: %d", completed(ring, &cqe));
    SHOW(syscall(SYS_io_uring_enter, ring->fd, 5, 2, IORING_ENTER_GETEVENTS, NULL, 0));
    SHOW(syscall(SYS_io_uring_enter, -1, 1, 0, 0, NULL, 0));
    SHOW(syscall(SYS_io_uring_enter, STDOUT_FILENO, 1, 0, 0, NULL, 0));
}

static void tries(struct ring *ring)
{
    counts(ring);
    connects(ring, 0);
    connects(ring, SOCK_NONBLOCK);
    shuts_down(ring);
    ends_in_order(ring);
    hands_over(ring);
    outlives(ring);
}

int main(void)
{
    const unsigned forms[] = {0, IORING_SETUP_NO_SQARRAY};
    struct ring ring;
    with_each(forms, sizeof forms / sizeof *forms, tries);
    if (make(&ring, 0))
        accepts(&ring);
    return 0;
}
