/* Several threads on one socket: a reader beside a writer, and one that shuts down
 * under another. */
#include "transcript.h"

enum { ROUNDS = 3000, SIZE = 100 };
static struct pair pair;

static void *echo(void *unused)
{
    char bytes[SIZE];
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        take_all(pair.server, bytes, SIZE);
        send_all(pair.server, bytes, SIZE);
    }
    return NULL;
}

static void *writes(void *unused)
{
    unsigned char bytes[SIZE];
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        fill(bytes, (uint64_t)round * SIZE, SIZE);
        send_all(pair.client, bytes, SIZE);
    }
    return NULL;
}

static void *one_recv(void *unused)
{
    char byte;
    (void)unused;
    SHOW(recv(pair.server, &byte, 1, 0));
    return NULL;
}

int main(void)
{
    pthread_t a, b;
    pair = promoted();
    pthread_create(&a, NULL, echo, NULL);
    pthread_create(&b, NULL, writes, NULL);
    bool right = true;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char bytes[SIZE];
        take_all(pair.client, bytes, SIZE);
        right &= same(bytes, (uint64_t)round * SIZE, SIZE);
    }
    say("an echo through three threads: %s", right ? "right" : "wrong");
    pthread_join(a, NULL);
    pthread_join(b, NULL);

    pair = promoted();
    pthread_create(&a, NULL, one_recv, NULL);
    pause_ms(50);
    NEED(shutdown(pair.server, SHUT_RD));
    pthread_join(a, NULL);
    pair = promoted();
    pthread_create(&a, NULL, one_recv, NULL);
    pause_ms(50);
    NEED(shutdown(pair.client, SHUT_RDWR));
    pthread_join(a, NULL);
    return 0;
}
