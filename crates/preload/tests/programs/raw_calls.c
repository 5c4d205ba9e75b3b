/* syscall(2), by which some programs read, write and close. */
#include "transcript.h"

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
    return 0;
}
