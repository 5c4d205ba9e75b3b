/* One peer writes to several connections while the process that has them in its epoll set is stopped: a wait reports them in the
 * order in which it wrote, level-triggered and by edges, also those behind which it wrote more. */
#include "transcript.h"

enum { COUNT = 8, ROUNDS = 60 };

struct answer {
    /* How many came before it, and how many waits were interrupted. */
    uint64_t serial, interrupted;
};

/* Answers on each connection, until one ends. */
static void answers(struct sockaddr_in at, unsigned how)
{
    int set = NEED(epoll_create1(0));
    for (int which = 0; which < COUNT; which++) {
        int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
        struct epoll_event event = {.events = EPOLLIN | how, .data.fd = fd};
        NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    }
    for (struct answer answer = {0, 0};;) {
        /* Room for all: which of too many are reported goes by turns. */
        struct epoll_event events[2 * COUNT];
        int ready = epoll_wait(set, events, 2 * COUNT, -1);
        /* As signal(7) says of one that was stopped. */
        if (ready < 0 && errno != EINTR)
            _exit(1);
        answer.interrupted += ready < 0;
        for (int place = 0; place < ready; place++) {
            char bytes[16];
            ssize_t count = recv(events[place].data.fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (count < 0 && errno == EAGAIN)
                continue;
            if (count <= 0)
                _exit(count != 0);
            send_all(events[place].data.fd, &answer, sizeof answer);
            answer.serial++;
        }
    }
}

static void converse(unsigned how)
{
    struct sockaddr_in at;
    int listener = listening(&at), fds[COUNT], out_of_order = 0, judged = 0;
    unsigned seed = 7;
    pid_t child = NEED(fork());
    if (child == 0)
        answers(at, how);
    for (int which = 0; which < COUNT; which++) {
        fds[which] = NEED(accept(listener, NULL, NULL));
        int one = 1;
        NEED(setsockopt(fds[which], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    }
    close(listener);
    struct answer answer = {0, 0};
    for (int which = 0; which < COUNT; which++)
        warm_far(fds[which], 'x', &answer, sizeof answer);
    /* A round counts if the process was stopped in a wait: one that ends of itself at that moment may have looked before. */
    long end = milliseconds() + PATIENCE_MS;
    for (int round = 0; judged < ROUNDS && milliseconds() < end; round++) {
        int order[COUNT], count = 2 + next_random(&seed) % (COUNT - 1);
        for (int which = 0; which < COUNT; which++)
            order[which] = which;
        shuffle(order, COUNT, &seed);
        wait_until(child, 'S');
        NEED(kill(child, SIGSTOP));
        wait_until(child, 'T');
        for (int which = 0; which < count; which++)
            send_all(fds[order[which]], "x", 1);
        /* More on the first does not bring it behind the others. */
        send_all(fds[order[0]], "y", 1);
        NEED(kill(child, SIGCONT));
        int swapped = 0;
        uint64_t before = answer.interrupted;
        for (int which = 0; which < count; which++) {
            uint64_t last = answer.serial;
            take_all(fds[order[which]], &answer, sizeof answer);
            swapped += which > 0 && answer.serial < last;
        }
        if (answer.interrupted > before) {
            judged++;
            out_of_order += swapped;
        }
    }
    say("%s: %d of %d out of order", how ? "edges" : "levels", out_of_order, judged);
    for (int which = 0; which < COUNT; which++)
        close(fds[which]);
    status_of(child);
}

int main(void)
{
    /* Bytes that are sent on one CPU arrive in their order. */
    stay_on_one_cpu();
    converse(0);
    converse(EPOLLET);
    return 0;
}
