/* SCM_RIGHTS: a connection given to another process, that did not inherit it. */
#include "transcript.h"

int main(void)
{
    char bytes[16] = {0};
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
