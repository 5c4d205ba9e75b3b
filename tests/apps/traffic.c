/* Checksummed traffic between two processes: `traffic serve PORT CONNECTIONS` echoes, and
 * `traffic ask PORT CONNECTIONS` sends on each connection, from a thread of its own, blocks of all
 * sizes, and compares what comes back. Exit status 0: every byte was right. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 64, BLOCKS = 300, LARGEST = 70000, ROOM = 1 << 17 };

#define NEED(call) ({ long need_ = (call); if (need_ < 0) { perror(#call); exit(1); } need_; })
/* signal(7): waits end early when the program was stopped and resumed. */
#define WAITED(call) ({ long waited_; do waited_ = (call); while (waited_ < 0 && errno == EINTR); NEED(waited_); })

static struct sockaddr_in at(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* One connection of the server: what was read and is to be written. */
struct echo {
    int fd, ended;
    size_t from, to;
    char bytes[ROOM];
};

/* Moves what can be moved; 0: the connection is done. */
static int move(struct echo *echo)
{
    for (;;) {
        if (echo->from == echo->to)
            echo->from = echo->to = 0;
        if (!echo->ended && echo->to < ROOM) {
            /* Two pieces, as programs read that have a buffer behind another. */
            size_t left = ROOM - echo->to, half = left / 2;
            struct iovec pieces[] = {{echo->bytes + echo->to, half}, {echo->bytes + echo->to + half, left - half}};
            ssize_t count = readv(echo->fd, pieces, 2);
            if (count > 0) {
                echo->to += count;
                continue;
            }
            if (count == 0)
                echo->ended = 1;
            else if (errno != EAGAIN)
                NEED(count);
        }
        if (echo->from == echo->to)
            return !echo->ended;
        ssize_t count = write(echo->fd, echo->bytes + echo->from, echo->to - echo->from);
        if (count < 0 && errno == EAGAIN)
            return 1;
        echo->from += NEED(count);
    }
}

static int serve(int port, int connections)
{
    struct sockaddr_in here = at(port);
    int listener = NEED(socket(AF_INET, SOCK_STREAM, 0)), on = 1, done = 0;
    NEED(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    NEED(bind(listener, (struct sockaddr *)&here, sizeof here));
    NEED(listen(listener, MOST));
    int set = NEED(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN}, events[16];
    NEED(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    while (done < connections) {
        int count = WAITED(epoll_wait(set, events, 16, 60000));
        if (count == 0)
            return 1;
        for (int place = 0; place < count; place++) {
            struct echo *echo = events[place].data.ptr;
            if (!echo) {
                echo = calloc(1, sizeof *echo);
                echo->fd = NEED(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
                event = (struct epoll_event){.events = EPOLLIN, .data.ptr = echo};
                NEED(epoll_ctl(set, EPOLL_CTL_ADD, echo->fd, &event));
            } else if (move(echo)) {
                event = (struct epoll_event){.events = echo->to > echo->from ? EPOLLOUT : EPOLLIN, .data.ptr = echo};
                NEED(epoll_ctl(set, EPOLL_CTL_MOD, echo->fd, &event));
            } else {
                close(echo->fd);
                free(echo);
                done++;
            }
        }
    }
    close(set);
    close(listener);
    return 0;
}

struct asker {
    pthread_t thread;
    int port, number, wrong;
};

static uint32_t next(uint32_t *state)
{
    return *state = *state * 1664525 + 1013904223;
}

static void *ask(void *argument)
{
    struct asker *asker = argument;
    struct sockaddr_in there = at(asker->port);
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    char *sent = malloc(LARGEST), *got = malloc(LARGEST);
    uint32_t state = asker->number + 1;
    NEED(connect(fd, (struct sockaddr *)&there, sizeof there));
    for (int block = 0; block < BLOCKS; block++) {
        /* Small ones mostly. */
        size_t length = 1 + (next(&state) >> 8) % (block % 8 ? 200 : LARGEST), done = 0;
        for (size_t place = 0; place < length; place++)
            sent[place] = next(&state) >> 24;
        while (done < length)
            done += NEED(send(fd, sent + done, length - done, MSG_NOSIGNAL));
        for (done = 0; done < length;) {
            struct pollfd one = {.fd = fd, .events = POLLIN};
            if (block % 3 == 0)
                WAITED(poll(&one, 1, 60000));
            ssize_t count = NEED(recv(fd, got + done, length - done, 0));
            if (count == 0)
                break;
            done += count;
        }
        asker->wrong |= done != length || memcmp(sent, got, length);
    }
    NEED(shutdown(fd, SHUT_WR));
    asker->wrong |= recv(fd, got, 1, 0) != 0;
    free(sent);
    free(got);
    close(fd);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int port = atoi(arguments[2]), connections = atoi(arguments[3]), wrong = 0;
    if (connections > MOST)
        return 2;
    if (!strcmp(arguments[1], "serve"))
        return serve(port, connections);
    struct asker askers[MOST] = {0};
    for (int number = 0; number < connections; number++) {
        askers[number].port = port;
        askers[number].number = number;
        if (pthread_create(&askers[number].thread, NULL, ask, &askers[number]))
            return 1;
    }
    for (int number = 0; number < connections; number++) {
        pthread_join(askers[number].thread, NULL);
        wrong |= askers[number].wrong;
    }
    return wrong;
}
