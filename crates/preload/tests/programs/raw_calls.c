/* syscall(2), by which some programs read, write and close. */
#include "transcript.h"

/* Those by which a whole server could live. */
static void others(void)
{
    struct sockaddr_in at;
    int listener = listening(&at);
    struct pair pair;
    SHOW((pair.client = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)) > 0);
    SHOW(syscall(SYS_connect, pair.client, &at, sizeof at));
    SHOW((pair.server = syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC)) > 0);
    int on = 1;
    socklen_t length = sizeof on;
    SHOW(syscall(SYS_setsockopt, pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    SHOW(syscall(SYS_setsockopt, pair.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    warm(pair);
    on = 0;
    SHOW(syscall(SYS_setsockopt, pair.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    SHOW(syscall(SYS_getsockopt, pair.client, IPPROTO_TCP, TCP_NODELAY, &on, &length));
    say("TCP_NODELAY %d", on);
    char bytes[64];
    struct iovec parts[2] = {{"one ", 4}, {"two", 3}}, room = {bytes, sizeof bytes};
    SHOW(syscall(SYS_pwritev2, pair.client, parts, 2, -1L, -1L, 0L));
    wait_for(pair.server, 7);
    SHOW(syscall(SYS_preadv2, pair.server, &room, 1, -1L, -1L, 0L));
    show_bytes("preadv2", bytes, 7);
    SHOW(syscall(SYS_preadv2, pair.server, &room, 1, -1L, -1L, (long)RWF_NOWAIT));
    SHOW(syscall(SYS_preadv2, pair.server, &room, 1, 0L, 0L, 0L));
    SHOW(pwritev2(pair.client, parts, 2, -1, 0));
    wait_for(pair.server, 7);
    SHOW(preadv2(pair.server, &room, 1, -1, RWF_NOWAIT));
    SHOW(preadv2(pair.server, &room, 1, 3, 0));
    SHOW(pwritev2(pair.client, parts, 2, -1, RWF_APPEND | RWF_SYNC));
    SHOW(pwritev2(pair.client, parts, 2, -1, 1 << 30));
    wait_for(pair.server, 7);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                              {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    SHOW(syscall(SYS_sendmmsg, pair.client, many, 2, 0));
    wait_for(pair.server, 7);
    struct mmsghdr one = {.msg_hdr = {.msg_iov = &room, .msg_iovlen = 1}};
    SHOW(syscall(SYS_recvmmsg, pair.server, &one, 1, 0, NULL));
    show_bytes("recvmmsg", bytes, one.msg_len);
    int pipes[2];
    SHOW(syscall(SYS_pipe2, pipes, O_CLOEXEC));
    SHOW(write(pipes[1], "through a pipe", 14));
    SHOW(syscall(SYS_splice, pipes[0], NULL, pair.client, NULL, 14, 0));
    SHOW(recv(pair.server, bytes, 14, MSG_WAITALL));
    int file = NEED(syscall(SYS_openat, AT_FDCWD, "/proc/self/exe", O_RDONLY | O_CLOEXEC, 0));
    off_t offset = 1;
    SHOW(syscall(SYS_sendfile, pair.client, file, &offset, 3));
    SHOW(recv(pair.server, bytes, 3, MSG_WAITALL));
    show_bytes("sendfile", bytes, 3);
    int set = NEED(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    SHOW(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair.server, &event));
    struct timespec limit = {0, 0};
    SHOW(syscall(SYS_epoll_pwait2, set, &event, 1, &limit, NULL, 8));
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(pair.server, &readable);
    limit.tv_nsec = 1000;
    SHOW(syscall(SYS_pselect6, pair.server + 1, &readable, NULL, NULL, &limit, NULL));
    say("left: %ld", limit.tv_nsec);
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(syscall(SYS_epoll_pwait2, set, &event, 1, NULL, NULL, 8));
    FD_SET(pair.server, &readable);
    SHOW(syscall(SYS_pselect6, pair.server + 1, &readable, NULL, NULL, NULL, NULL));
    limit = (struct timespec){100, 0};
    struct pollfd fd = {.fd = pair.server, .events = POLLIN};
    SHOW(syscall(SYS_ppoll, &fd, 1, &limit, NULL, 8));
    say("left: %d", limit.tv_sec == 99 && limit.tv_nsec > 0);
#ifdef SYS_poll
    SHOW(syscall(SYS_poll, &fd, 1, -1));
    SHOW(syscall(SYS_epoll_wait, set, &event, 1, -1));
    SHOW(syscall(SYS_select, pair.server + 1, &readable, NULL, NULL, NULL));
    SHOW(syscall(SYS_dup2, pair.server, 77));
    SHOW(syscall(SYS_close, pair.server));
    SHOW(recv(77, bytes, sizeof bytes, 0));
    /* A file where the connection was. */
    SHOW(syscall(SYS_open, "/dev/zero", O_RDONLY) == pair.server);
    SHOW(read(pair.server, bytes, 4));
    SHOW(syscall(SYS_close, 77));
#endif
}

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    struct iovec one = {bytes, sizeof bytes}, out = {"vector", 6};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1}, from = {.msg_iov = &out, .msg_iovlen = 1};
    SHOW(syscall(SYS_write, pair.client, "abc", 3));
    SHOW(syscall(SYS_read, pair.server, bytes, sizeof bytes));
    SHOW(syscall(SYS_sendto, pair.client, "def", 3, 0, NULL, 0));
    SHOW(syscall(SYS_recvfrom, pair.server, bytes, sizeof bytes, 0, NULL, NULL));
    SHOW(syscall(SYS_writev, pair.server, &out, 1));
    SHOW(syscall(SYS_readv, pair.client, &one, 1));
    SHOW(syscall(SYS_sendmsg, pair.server, &from, 0));
    SHOW(syscall(SYS_recvmsg, pair.client, &head, 0));
    SHOW(syscall(SYS_recvfrom, pair.client, bytes, sizeof bytes, MSG_DONTWAIT, NULL, NULL));
    struct pollfd fd = {.fd = pair.server, .events = POLLIN};
    struct timespec none = {0, 0};
    SHOW(syscall(SYS_ppoll, &fd, 1, &none, NULL, 8));
    SHOW(send(pair.client, "x", 1, 0));
    wait_for(pair.server, 1);
    SHOW(syscall(SYS_ppoll, &fd, 1, &none, NULL, 8));
    SHOW(syscall(SYS_ioctl, pair.server, FIONREAD, &fd.fd));
    say("FIONREAD: %d", fd.fd);
    int two = SHOW(syscall(SYS_dup, pair.server)) >= 0 ? pair.server : -1;
    SHOW(syscall(SYS_dup3, two, 77, 0));
    SHOW(syscall(SYS_close, pair.server));
    SHOW(recv(77, bytes, sizeof bytes, 0));
    SHOW(syscall(SYS_fcntl, 77, F_SETFL, O_NONBLOCK));
    SHOW(recv(77, bytes, sizeof bytes, 0));
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    SHOW(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, 77, &event));
    SHOW(send(pair.client, "y", 1, 0));
    SHOW(syscall(SYS_epoll_pwait, set, &event, 1, -1, NULL, 8));
    say("%u", (unsigned)event.data.u64);
    SHOW(recv(77, bytes, sizeof bytes, 0));
    SHOW(syscall(SYS_shutdown, pair.client, SHUT_WR));
    SHOW(recv(77, bytes, sizeof bytes, 0));
    SHOW(syscall(SYS_getpid) == getpid());
    SHOW(syscall(SYS_close_range, 77, 77, 0));
    SHOW(recv(77, bytes, sizeof bytes, 0));
    SHOW(syscall(9999));
    others();
    return 0;
}
