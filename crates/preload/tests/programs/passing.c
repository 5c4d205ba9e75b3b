/* SCM_RIGHTS: a connection given to another process, that did not inherit it. */
#include "transcript.h"

static void give(int channel, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec one = {"x", 1};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *message = CMSG_FIRSTHDR(&head);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(message), &fd, sizeof fd);
    NEED(sendmsg(channel, &head, 0));
}

static int take(int channel)
{
    int fd;
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte;
    struct iovec one = {&byte, 1};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    NEED(recvmsg(channel, &head, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&head)), sizeof fd);
    return fd;
}

int main(void)
{
    char bytes[16] = {0};
    for (int is_promoted = 0; is_promoted < 2; is_promoted++) {
        say("# %s", is_promoted ? "after some messages" : "at once");
        int channel[2];
        NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
        pid_t child = NEED(fork());
        if (child == 0) {
            int fd = take(channel[1]);
            for (int round = 0; round < 50; round++) {
                take_all(fd, bytes, 10);
                send_all(fd, bytes, 10);
                if (round % 10 == 0)
                    pause_ms(2);
            }
            _exit(0);
        }
        struct pair pair = is_promoted ? promoted() : connected();
        give(channel[0], pair.server);
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
        int status;
        NEED(waitpid(child, &status, 0));
        say("status %d", status);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        SHOW(close(pair.client));
        close(channel[0]);
        close(channel[1]);
    }
    return 0;
}
