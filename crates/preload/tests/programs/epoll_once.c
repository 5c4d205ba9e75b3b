/* No wait in an epoll set reports a descriptor twice, and no read of one that it reports fails with EAGAIN, which some programs
 * (wrk) take for an error. Many connections, which go to memory one by one while they are in use.
 * also: auto */
#include "transcript.h"

enum { COUNT = 50, ROUNDS = 40, MESSAGES = 60 };

/* Takes and answers what comes, as an event loop does. */
static void serves(int listener)
{
    int set = NEED(epoll_create1(0));
    add(set, listener, EPOLLIN, (uint64_t)listener);
    for (;;) {
        struct epoll_event events[COUNT];
        int ready = epoll_wait(set, events, COUNT, -1);
        for (int place = 0; place < ready; place++) {
            char bytes[64];
            int fd = (int)events[place].data.u64;
            if (fd == listener) {
                int new = NEED(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
                add(set, new, EPOLLIN, (uint64_t)new);
                continue;
            }
            ssize_t count = recv(fd, bytes, sizeof bytes, 0);
            if (count > 0)
                send_all(fd, bytes, (size_t)count);
            else if (count == 0)
                close(fd);
        }
    }
}

int main(void)
{
    struct sockaddr_in at;
    int listener = listening(&at), twice = 0, nothing = 0, wrong = 0;
    NEED(listen(listener, COUNT));
    pid_t child = NEED(fork());
    if (child == 0)
        serves(listener);
    close(listener);
    for (int round = 0; round < ROUNDS; round++) {
        int fds[COUNT], set = NEED(epoll_create1(0));
        for (int which = 0; which < COUNT; which++) {
            fds[which] = NEED(socket(AF_INET, SOCK_STREAM, 0));
            NEED(connect(fds[which], (struct sockaddr *)&at, sizeof at));
            nonblocking(fds[which]);
            int one = 1;
            NEED(setsockopt(fds[which], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
            add(set, fds[which], EPOLLIN, (uint64_t)which);
            send_all(fds[which], "x", 1);
        }
        for (int left = COUNT * MESSAGES; left > 0;) {
            struct epoll_event events[COUNT];
            bool told[COUNT] = {false};
            int ready = NEED(epoll_wait(set, events, COUNT, 10000));
            if (ready == 0)
                fail("an answer");
            for (int place = 0; place < ready; place++) {
                int which = (int)events[place].data.u64;
                char byte = 0;
                twice += told[which];
                told[which] = true;
                if (recv(fds[which], &byte, 1, 0) == 1) {
                    wrong += byte != 'x';
                    if (--left >= COUNT)
                        send_all(fds[which], "x", 1);
                } else if (errno == EAGAIN) {
                    nothing++;
                } else {
                    fail("a byte");
                }
            }
        }
        for (int which = 0; which < COUNT; which++)
            close(fds[which]);
        close(set);
    }
    say("reported twice: %d, not readable: %d, wrong: %d", twice, nothing, wrong);
    NEED(kill(child, SIGKILL));
    status_of(child);
    return 0;
}
