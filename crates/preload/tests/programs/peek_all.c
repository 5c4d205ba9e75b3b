/* MSG_PEEK with MSG_WAITALL: it waits until all is here that there is room for, and takes nothing; an end, a timeout or a
 * handler ends it with what is here. */
#include "transcript.h"

enum { WHOLE = 300 * 1024 };

static struct pair pair;
static char sent[WHOLE], got[WHOLE];
static volatile bool done;

static void *sends_in_pieces(void *pieces)
{
    size_t count = (size_t)pieces;
    for (size_t at = 0; at < 12; at += count) {
        usleep(5000);
        send_all(pair.client, "abcdefghijkl" + at, count);
    }
    return NULL;
}

static void *ends(void *unused)
{
    (void)unused;
    usleep(5000);
    send_all(pair.client, "more", 4);
    usleep(5000);
    NEED(shutdown(pair.client, SHUT_WR));
    return NULL;
}

static void handles(int signal)
{
    (void)signal;
}

static void *interrupts(void *thread)
{
    while (!done) {
        usleep(10000);
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
    }
    return NULL;
}

static void *sends_whole(void *unused)
{
    (void)unused;
    send_all(pair.client, sent, WHOLE);
    return NULL;
}

int main(void)
{
    pair = promoted();
    pthread_t thread, own = pthread_self();
    for (size_t count = 1; count <= 12; count *= 2) {
        size_t size = count == 8 ? 12 : count;
        memset(got, 0, 16);
        pthread_create(&thread, NULL, sends_in_pieces, (void *)size);
        SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL));
        show_bytes("peeked", got, 12);
        pthread_join(thread, NULL);
        SHOW(recv(pair.server, got, 12, MSG_DONTWAIT));
        show_bytes("read", got, 12);
    }
    send_all(pair.client, "few", 3);
    SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    nonblocking(pair.server);
    SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL));
    NEED(fcntl(pair.server, F_SETFL, 0));
    struct timeval limit = {.tv_usec = 30000}, none = {0};
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL));
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    struct sigaction action = {.sa_handler = handles, .sa_flags = SA_RESTART};
    NEED(sigaction(SIGUSR1, &action, NULL));
    pthread_create(&thread, NULL, interrupts, &own);
    SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL));
    done = true;
    pthread_join(thread, NULL);
    SHOW(recv(pair.server, got, 12, 0));
    /* More than the memory has room for. */
    int room = WHOLE * 4;
    NEED(setsockopt(pair.server, SOL_SOCKET, SO_RCVBUF, &room, sizeof room));
    for (size_t at = 0; at < WHOLE; at++)
        sent[at] = at * 7 / 5;
    pthread_create(&thread, NULL, sends_whole, NULL);
    SHOW(recv(pair.server, got, WHOLE, MSG_PEEK | MSG_WAITALL));
    say("all right: %d", !memcmp(sent, got, WHOLE));
    pthread_join(thread, NULL);
    take_all(pair.server, got, WHOLE);
    say("all right: %d", !memcmp(sent, got, WHOLE));
    pthread_create(&thread, NULL, ends, NULL);
    SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL));
    show_bytes("peeked", got, 4);
    pthread_join(thread, NULL);
    SHOW(recv(pair.server, got, 12, 0));
    SHOW(recv(pair.server, got, 12, MSG_PEEK | MSG_WAITALL));
    return 0;
}
