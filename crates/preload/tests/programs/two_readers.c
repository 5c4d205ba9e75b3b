/* Two readers on one socket: every byte is taken once. */
#include "transcript.h"

enum { ROUNDS = 6000, SIZE = 100 };
static struct pair pair;
static long taken[2];

static void *writes(void *argument)
{
    char bytes[SIZE] = {0};
    for (long round = (long)argument; round > 0; round--)
        send_all(pair.client, bytes, SIZE);
    return NULL;
}

static void *reads(void *argument)
{
    long *count = argument;
    char bytes[64];
    ssize_t took;
    while ((took = recv(pair.server, bytes, sizeof bytes, 0)) > 0)
        *count += took;
    return NULL;
}

int main(void)
{
    pthread_t a, b;
    pair = promoted();
    pthread_create(&a, NULL, reads, &taken[0]);
    pthread_create(&b, NULL, reads, &taken[1]);
    writes((void *)(long)ROUNDS);
    SHOW(shutdown(pair.client, SHUT_WR));
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    say("taken: %ld", taken[0] + taken[1]);
    return 0;
}
