/* Edge-triggered sets on both ends while megabytes pass and buffers fill and empty: every read
 * and write goes on until EAGAIN, or until a read comes up short. */
#include "transcript.h"

enum { CHUNK = 1 << 16 };
static const uint64_t TOTAL = 32ull << 20;
static struct pair pair;

static void *writer(void *unused)
{
    static unsigned char bytes[CHUNK];
    (void)unused;
    int set = NEED(epoll_create1(0));
    NEED(add(set, pair.client, EPOLLOUT | EPOLLET, 1));
    uint64_t place = 0;
    while (place < TOTAL) {
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, 20000) != 1)
            fail("no edge for the writer");
        for (;;) {
            size_t count = TOTAL - place < CHUNK ? TOTAL - place : 1 + place % CHUNK;
            if (!count)
                break;
            fill(bytes, place, count);
            ssize_t sent = send(pair.client, bytes, count, 0);
            if (sent < 0) {
                if (errno != EAGAIN)
                    fail("send");
                break;
            }
            place += sent;
        }
    }
    NEED(shutdown(pair.client, SHUT_WR));
    return NULL;
}

int main(int count, char **arguments)
{
    (void)arguments;
    static unsigned char bytes[CHUNK * 2];
    for (int stops_short = 0; stops_short < 2; stops_short++) {
        pair = promoted();
        nonblocking(pair.client);
        nonblocking(pair.server);
        int set = NEED(epoll_create1(0));
        NEED(add(set, pair.server, EPOLLIN | EPOLLET | EPOLLRDHUP, 1));
        pthread_t thread;
        pthread_create(&thread, NULL, writer, NULL);
        uint64_t place = 0;
        bool ended = false;
        while (!ended) {
            struct epoll_event event;
            if (epoll_wait(set, &event, 1, 20000) != 1)
                fail("no edge for the reader");
            for (;;) {
                size_t room = 1 + place % sizeof bytes;
                ssize_t took = recv(pair.server, bytes, room, 0);
                if (took == 0)
                    ended = true;
                if (took < 0 && errno != EAGAIN)
                    fail("recv");
                if (took <= 0)
                    break;
                if (!same(bytes, place, took)) {
                    say("wrong bytes");
                    return 0;
                }
                place += took;
                /* What epoll(7) allows for streams, unless the end was told of. */
                if (stops_short && (size_t)took < room && !(event.events & EPOLLRDHUP))
                    break;
            }
        }
        pthread_join(thread, NULL);
        say("all bytes came in their order: %d", place == TOTAL);
        close(set);
        close(pair.client);
        close(pair.server);
    }
    return count != 1;
}
