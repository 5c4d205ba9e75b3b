/* A process that forbids itself all system calls but a few (seccomp(2)), once its connection is
 * promoted and bytes lie there unread, and goes on with these few. */
#include "transcript.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { MORE = 60 };

#define ALLOW(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void confine(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(close), ALLOW(getpid), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SHOW(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0));
    NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void read_all(int fd, char *bytes, size_t count)
{
    for (size_t done = 0; done < count;)
        done += NEED(read(fd, bytes + done, count - done));
}

int main(void)
{
    char bytes[64] = {0};
    /* The second one has begun as TCP only: it would be promoted after some more messages. */
    for (int is_new = 0; is_new < 2; is_new++) {
        struct pair pair = is_new ? connected() : promoted();
        int ready[2];
        NEED(pipe(ready));
        NEED(write(pair.client, "unread", 6));
        pid_t child = NEED(fork());
        if (child == 0) {
            close(pair.client);
            confine();
            NEED(write(ready[1], "", 1));
            read_all(pair.server, bytes, 6);
            show_bytes("unread", bytes, 6);
            for (int round = 0; round < MORE; round++) {
                read_all(pair.server, bytes, 8);
                NEED(write(pair.server, bytes, 8));
            }
            SHOW(read(pair.server, bytes, 8));
            NEED(write(pair.server, "bye", 3));
            SHOW(close(pair.server));
            _exit(7);
        }
        close(pair.server);
        NEED(read(ready[0], bytes, 1));
        bool right = true;
        for (int round = 0; round < MORE; round++) {
            char sent[8], got[8];
            memset(sent, round, sizeof sent);
            send_all(pair.client, sent, sizeof sent);
            take_all(pair.client, got, sizeof got);
            right &= !memcmp(sent, got, sizeof sent);
        }
        say("echo: %s", right ? "right" : "wrong");
        NEED(shutdown(pair.client, SHUT_WR));
        int status;
        NEED(waitpid(child, &status, 0));
        SHOW(recv(pair.client, bytes, sizeof bytes, MSG_WAITALL));
        say("status %d, signal %d", WEXITSTATUS(status), WTERMSIG(status));
    }
    return 0;
}
