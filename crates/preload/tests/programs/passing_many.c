/* SCM_RIGHTS in messages of sendmmsg(2) and recvmmsg(2). */
#include "transcript.h"

enum { CONTROL = CMSG_SPACE(sizeof(int)) };

static void fill_in(struct mmsghdr *message, struct iovec *part, char *control)
{
    *message = (struct mmsghdr){.msg_hdr = {.msg_iov = part, .msg_iovlen = 1, .msg_control = control,
                                            .msg_controllen = CONTROL}};
}

int main(void)
{
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, channel));
    char control[2][CONTROL] = {{0}}, bytes[2][16];
    struct mmsghdr messages[2];
    pid_t child = NEED(fork());
    if (child == 0) {
        struct iovec room[2] = {{bytes[0], 16}, {bytes[1], 16}};
        int fds[2], got = 0;
        while (got < 2) {
            for (int at = 0; at < 2; at++)
                fill_in(&messages[at], &room[at], control[at]);
            int came = NEED(recvmmsg(channel[1], messages, 2 - got, MSG_WAITFORONE, NULL));
            for (int at = 0; at < came; at++)
                memcpy(&fds[got++], CMSG_DATA(CMSG_FIRSTHDR(&messages[at].msg_hdr)), sizeof(int));
        }
        for (int round = 0; round < 20; round++)
            for (int at = 0; at < 2; at++) {
                take_all(fds[at], bytes[0], 8);
                send_all(fds[at], bytes[0], 8);
            }
        _exit(0);
    }
    struct pair pairs[2] = {promoted(), promoted()};
    struct iovec part = {"take it", 7};
    for (int at = 0; at < 2; at++) {
        fill_in(&messages[at], &part, control[at]);
        struct cmsghdr *header = CMSG_FIRSTHDR(&messages[at].msg_hdr);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                   .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(header), &pairs[at].server, sizeof(int));
    }
    SHOW(sendmmsg(channel[0], messages, 2, 0));
    for (int at = 0; at < 2; at++)
        SHOW(close(pairs[at].server));
    bool right = true;
    for (int round = 0; round < 20; round++)
        for (int at = 0; at < 2; at++) {
            char sent[8], got[8];
            memset(sent, 'a' + round + at, sizeof sent);
            send_all(pairs[at].client, sent, 8);
            take_all(pairs[at].client, got, 8);
            right &= !memcmp(sent, got, 8);
        }
    say("echo: %s", right ? "right" : "wrong");
    status_of(child);
    for (int at = 0; at < 2; at++)
        SHOW(recv(pairs[at].client, bytes[0], 8, 0));
    return 0;
}
