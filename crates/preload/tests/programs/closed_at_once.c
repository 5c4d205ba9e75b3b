/* An end that waits takes a message from the memory, before what wakes it for that is in the kernel, answers and
 * closes: the other end reads the answer, and an end, not a reset. */
#include "transcript.h"

enum { ROUNDS = 60 };

static void answers_and_closes(int fd)
{
    char byte;
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    if (NEED(epoll_wait(set, &event, 1, 0)) != 0)
        fail("nothing was sent");
    send_all(fd, "now", 3);
    ssize_t got;
    while ((got = recv(fd, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
    }
    if (got != 1)
        fail("the message");
    send_all(fd, "answer", 6);
    close(fd);
    close(set);
}

/* As `warm` with the other end in another process. */
static void warm_with_other(int fd)
{
    char bytes[PING] = "ping";
    long end = milliseconds() + PATIENCE_MS;
    for (int calm = 0, round = 0; calm < 4 && (eager() ? milliseconds() < end : round < ROUNDS_PLAIN); round++) {
        uint64_t before = came_by_tcp(fd);
        send_all(fd, bytes, PING);
        take_all(fd, bytes, PING);
        calm = came_by_tcp(fd) - before < PING ? calm + 1 : 0;
        if (eager())
            usleep(500);
    }
    bytes[0] = 'd';
    send_all(fd, bytes, PING);
}

static void echo_warm(int fd)
{
    for (char bytes[PING]; take_all(fd, bytes, PING), bytes[0] != 'd';)
        send_all(fd, bytes, PING);
}

int main(void)
{
    struct sockaddr_in at;
    int listener = listening(&at), on = 1;
    pid_t child = NEED(fork());
    for (int round = 0; round < ROUNDS; round++) {
        char bytes[16];
        int fd = child ? NEED(socket(AF_INET, SOCK_STREAM, 0)) : NEED(accept(listener, NULL, NULL));
        if (child)
            NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
        NEED(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
        if (!child) {
            echo_warm(fd);
            answers_and_closes(fd);
            continue;
        }
        warm_with_other(fd);
        take_all(fd, bytes, 3);
        send_all(fd, "?", 1);
        take_all(fd, bytes, 6);
        SHOW(recv(fd, bytes, sizeof bytes, 0));
        close(fd);
    }
    if (!child)
        return 0;
    int status;
    NEED(waitpid(child, &status, 0));
    say("status %d", status);
    return 0;
}
