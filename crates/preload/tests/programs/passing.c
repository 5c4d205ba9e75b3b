/* SCM_RIGHTS: a connection given to another process, that did not inherit it. */
#include "transcript.h"

/* Lengths that lie are refused. */
static void lies(void)
{
    const size_t lengths[] = {3, CMSG_LEN(sizeof(int)) + 1024, (size_t)1 << 40, (size_t)-1};
    struct pair pair = promoted();
    int channel[2];
    char byte = 'x';
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {{.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &pair.server, sizeof(int));
    struct iovec piece = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    for (unsigned at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        control.header.cmsg_len = lengths[at];
        SHOW(sendmsg(channel[0], &message, 0));
    }
    used(pair);
    close(pair.client);
    close(pair.server);
    close(channel[0]);
    close(channel[1]);
}

int main(void)
{
    char bytes[16] = {0};
    lies();
    for (int is_promoted = 0; is_promoted < 2; is_promoted++) {
        say("# %s", is_promoted ? "after some messages" : "at once");
        int channel[2];
        NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        pid_t child = NEED(fork());
        if (child == 0) {
            int fd = take_fd(channel[1]);
            for (int round = 0; round < 50; round++) {
                take_all(fd, bytes, 10);
                send_all(fd, bytes, 10);
                if (round % 10 == 0)
                    pause_ms(2);
            }
            _exit(0);
        }
        struct pair pair = is_promoted ? promoted() : connected();
        give_fd(channel[0], pair.server);
        SHOW(close(pair.server));
        bool right = true;
        for (int round = 0; round < 50; round++) {
            char sent[10], got[10];
            memset(sent, 'a' + round % 26, sizeof sent);
            send_all(pair.client, sent, 10);
            take_all(pair.client, got, 10);
            right &= !memcmp(sent, got, 10);
        }
        say("echo: %s", right ? "right" : "wrong");
        status_of(child);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        SHOW(close(pair.client));
        close(channel[0]);
        close(channel[1]);
    }
    return 0;
}
