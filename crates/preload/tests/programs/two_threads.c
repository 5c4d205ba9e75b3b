/* Two readers on one socket, of one writer and of two: every byte is taken once. */
#include "transcript.h"

enum { ROUNDS = 6000, SIZE = 100 };
static struct pair pair;

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

static void readers_and_writers(int readers, int writers)
{
    say("# readers %d, writers %d", readers, writers);
    pthread_t reading[2], writing[2];
    long taken[2] = {0};
    pair = promoted();
    for (int at = 0; at < readers; at++)
        pthread_create(&reading[at], NULL, reads, &taken[at]);
    for (int at = 1; at < writers; at++)
        pthread_create(&writing[at], NULL, writes, (void *)(long)(ROUNDS / writers));
    writes((void *)(long)(ROUNDS / writers));
    for (int at = 1; at < writers; at++)
        pthread_join(writing[at], NULL);
    SHOW(shutdown(pair.client, SHUT_WR));
    for (int at = 0; at < readers; at++)
        pthread_join(reading[at], NULL);
    say("taken: %ld", taken[0] + taken[1]);
    close(pair.client);
    close(pair.server);
}

int main(void)
{
    readers_and_writers(2, 1);
    readers_and_writers(1, 2);
    return 0;
}
