/* sendmsg(2), recvmsg(2), sendmmsg(2) and recvmmsg(2): vectors, and what a message's head
 * says afterwards. */
#include "transcript.h"

static void show_head(const struct msghdr *head)
{
    say("  namelen %u, controllen %zu, flags %#x", head->msg_namelen, head->msg_controllen, head->msg_flags);
}

int main(void)
{
    struct pair pair = promoted();
    char a[8] = {0}, b[8] = {0}, control[64];
    struct sockaddr_in name;
    struct iovec out[3] = {{"abc", 3}, {"", 0}, {"defgh", 5}};
    struct msghdr head = {.msg_iov = out, .msg_iovlen = 3};
    SHOW(sendmsg(pair.client, &head, 0));
    struct iovec in[2] = {{a, 2}, {b, 4}};
    struct msghdr into = {.msg_iov = in, .msg_iovlen = 2, .msg_name = &name, .msg_namelen = sizeof name,
                          .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
    SHOW(recvmsg(pair.server, &into, 0));
    show_head(&into);
    show_bytes("a", a, 2);
    show_bytes("b", b, 4);
    into.msg_flags = 77;
    into.msg_controllen = sizeof control;
    into.msg_namelen = sizeof name;
    SHOW(recvmsg(pair.server, &into, MSG_CMSG_CLOEXEC));
    show_head(&into);
    show_bytes("a", a, 2);
    into.msg_flags = 77;
    into.msg_controllen = sizeof control;
    into.msg_namelen = sizeof name;
    SHOW(recvmsg(pair.server, &into, MSG_DONTWAIT));
    show_head(&into);

    struct iovec pieces[4] = {{"one", 3}, {"two", 3}, {"three", 5}, {"!", 1}};
    struct mmsghdr many[3] = {
        {.msg_hdr = {.msg_iov = &pieces[0], .msg_iovlen = 1}, .msg_len = 99},
        {.msg_hdr = {.msg_iov = &pieces[1], .msg_iovlen = 2}, .msg_len = 99},
        {.msg_hdr = {.msg_iov = &pieces[3], .msg_iovlen = 1}, .msg_len = 99},
    };
    SHOW(sendmmsg(pair.server, many, 3, 0));
    say("lengths %u %u %u", many[0].msg_len, many[1].msg_len, many[2].msg_len);
    char parts[4][5] = {{0}};
    struct iovec places[4];
    struct mmsghdr got[4];
    memset(got, 0, sizeof got);
    for (int at = 0; at < 4; at++) {
        places[at] = (struct iovec){parts[at], 5};
        got[at].msg_hdr.msg_iov = &places[at];
        got[at].msg_hdr.msg_iovlen = 1;
        got[at].msg_len = 99;
    }
    wait_for(pair.client, 12);
    SHOW(recvmmsg(pair.client, got, 4, MSG_WAITFORONE, NULL));
    for (int at = 0; at < 4; at++) {
        say("length %u", got[at].msg_len);
        show_bytes("part", parts[at], 5);
    }
    SHOW(recvmmsg(pair.client, got, 4, MSG_DONTWAIT, NULL));
    SHOW(recvmmsg(pair.client, got, 0, 0, NULL));
    SHOW(sendmmsg(pair.client, many, 0, 0));
    SHOW(sendmmsg(pair.client, many, 2, MSG_DONTWAIT));
    wait_for(pair.server, 11);
    struct timespec limit = {5, 0};
    SHOW(recvmmsg(pair.server, got, 2, 0, &limit));
    say("lengths %u %u", got[0].msg_len, got[1].msg_len);
    limit.tv_nsec = 2000000000;
    SHOW(recvmmsg(pair.server, got, 2, MSG_DONTWAIT, &limit));

    /* An end in the middle of several messages. */
    SHOW(send(pair.client, "tail", 4, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    wait_for(pair.server, 5);
    SHOW(recvmmsg(pair.server, got, 1, 0, NULL));
    SHOW(recvmsg(pair.server, &into, 0));
    show_head(&into);
    head.msg_iovlen = 2000;
    SHOW(sendmsg(pair.server, &head, 0));
    into.msg_iovlen = 2000;
    SHOW(recvmsg(pair.server, &into, 0));
    return 0;
}
