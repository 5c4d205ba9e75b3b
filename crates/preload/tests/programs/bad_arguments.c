/* Descriptors and addresses that are none. */
#include "transcript.h"
#include <sys/sendfile.h>

int main(void)
{
    struct pair pair = promoted();
    char bytes[8];
    void *low = (void *)16, *high = (void *)-4096;
    int file = NEED(open("/proc/self/exe", O_RDONLY));
    int pipes[2];
    NEED(pipe(pipes));
    SHOW(read(-1, bytes, 1));
    SHOW(write(-1, bytes, 1));
    SHOW(recv(999, bytes, 1, 0));
    SHOW(send(999, bytes, 1, 0));
    SHOW(recv(file, bytes, 1, 0));
    SHOW(send(pipes[1], bytes, 1, 0));
    SHOW(shutdown(file, SHUT_WR));
    SHOW(shutdown(999, SHUT_WR));
    SHOW(getsockopt(file, SOL_SOCKET, SO_ERROR, bytes, NULL));
    SHOW(close(-1));
    SHOW(close(999));

    SHOW(send(pair.client, NULL, 4, 0));
    SHOW(send(pair.client, low, 4, 0));
    SHOW(write(pair.client, high, 4));
    struct iovec one = {low, 4};
    SHOW(writev(pair.client, &one, 1));
    SHOW(writev(pair.client, NULL, 1));
    SHOW(writev(pair.client, &one, -1));
    SHOW(writev(pair.client, &one, 2000));
    SHOW(sendmsg(pair.client, NULL, 0));
    SHOW(send(pair.client, "abcdefgh", 8, 0));
    wait_for(pair.server, 8);
    SHOW(recv(pair.server, NULL, 4, 0));
    SHOW(recv(pair.server, low, 4, MSG_PEEK));
    SHOW(read(pair.server, high, 4));
    SHOW(readv(pair.server, &one, 1));
    SHOW(readv(pair.server, NULL, 1));
    SHOW(readv(pair.server, &one, -1));
    one.iov_len = -1;
    one.iov_base = bytes;
    SHOW(readv(pair.server, &one, 1));
    SHOW(recvmsg(pair.server, NULL, 0));
    /* Vectors, messages and addresses that no program can have. */
    void *const nowhere[] = {low, high, (void *)0x4141414141414141};
    for (int at = 0; at < 3; at++) {
        struct msghdr head = {.msg_iov = nowhere[at], .msg_iovlen = 1};
        struct mmsghdr many = {.msg_hdr = head};
        struct iovec piece = {nowhere[at], 4};
        SHOW(readv(pair.server, nowhere[at], 1));
        SHOW(writev(pair.client, nowhere[at], 1));
        SHOW(recvmsg(pair.server, nowhere[at], 0));
        SHOW(sendmsg(pair.client, nowhere[at], 0));
        SHOW(recvmsg(pair.server, &head, 0));
        SHOW(sendmsg(pair.client, &head, 0));
        SHOW(recvmmsg(pair.server, nowhere[at], 1, 0, NULL));
        SHOW(sendmmsg(pair.client, nowhere[at], 1, 0));
        SHOW(recvmmsg(pair.server, &many, 1, 0, NULL));
        SHOW(recv(pair.server, nowhere[at], 4, 0));
        SHOW(send(pair.client, nowhere[at], 4, 0));
        SHOW(readv(pair.server, &piece, 1));
        SHOW(poll(nowhere[at], 1, 0));
        SHOW(ioctl(pair.server, FIONREAD, nowhere[at]));
        SHOW(setsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, nowhere[at], 4));
        SHOW(getsockopt(pair.client, IPPROTO_TCP, TCP_NODELAY, nowhere[at], nowhere[at]));
        SHOW(recvfrom(pair.server, bytes, 0, MSG_DONTWAIT, NULL, nowhere[at]) < 0);
    }
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.server, EPOLLIN, 1));
    for (int at = 0; at < 3; at++) {
        SHOW(epoll_wait(set, nowhere[at], 1, 0));
        SHOW(epoll_ctl(set, EPOLL_CTL_MOD, pair.server, nowhere[at]));
    }
    close(set);
    /* Nothing of it was taken. */
    SHOW(recv(pair.server, bytes, 8, 0));
    show_bytes("recv", bytes, 8);
    SHOW(recv(pair.server, NULL, 4, MSG_DONTWAIT));
    SHOW(poll(low, 1, 0));
    SHOW(ioctl(pair.server, FIONREAD, low));
    SHOW(sendfile(pair.client, 999, NULL, 4));
    SHOW(sendfile(999, file, NULL, 4));
    SHOW(sendfile(file, file, NULL, 4) < 0);
    SHOW(setsockopt(pair.client, SOL_SOCKET, SO_KEEPALIVE, low, 4));
    SHOW(connect(999, NULL, 0));
    SHOW(accept(999, NULL, NULL));
    SHOW(socket(77, 77, 77));
    SHOW(dup2(pair.client, 1 << 30));
    return 0;
}
