/* Several processes or threads write small messages to one socket: none comes into the middle of another, also where the reader
 * is slower than they are. */
#include "transcript.h"

enum { WRITERS = 3, MESSAGES = 3000, SIZE = 64, ROUNDS = 10 };

static struct pair pair;

static void *writes(void *letter)
{
    char message[SIZE];
    memset(message, 'a' + (int)(intptr_t)letter, SIZE);
    for (int count = 0; count < MESSAGES; count++)
        send_all(pair.client, message, SIZE);
    return NULL;
}

static int torn_of_all(void)
{
    int torn = 0;
    char message[SIZE];
    for (int count = 0; count < WRITERS * MESSAGES; count++) {
        take_all(pair.server, message, SIZE);
        torn += memcmp(message, message + 1, SIZE - 1) != 0;
    }
    return torn;
}

int main(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        pair = promoted();
        for (intptr_t writer = 0; writer < WRITERS; writer++)
            if (!NEED(fork())) {
                writes((void *)writer);
                _exit(0);
            }
        say("processes: %d of all in pieces", torn_of_all());
        for (int writer = 0; writer < WRITERS; writer++)
            NEED(wait(NULL));
        close(pair.client);
        close(pair.server);
    }
    for (int round = 0; round < ROUNDS; round++) {
        pair = promoted();
        pthread_t threads[WRITERS];
        for (intptr_t writer = 0; writer < WRITERS; writer++)
            pthread_create(&threads[writer], NULL, writes, (void *)writer);
        say("threads: %d of all in pieces", torn_of_all());
        for (int writer = 0; writer < WRITERS; writer++)
            pthread_join(threads[writer], NULL);
        close(pair.client);
        close(pair.server);
    }
    return 0;
}
