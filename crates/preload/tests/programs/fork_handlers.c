/* Handlers of pthread_atfork(3) use connections, and wait for threads that do. */
#include "transcript.h"

#include <semaphore.h>

static struct pair pair, other;
static sem_t asked, answered;

/* Uses another connection once the fork has begun. */
static void *works(void *unused)
{
    char byte = 'w';
    for (;;) {
        sem_wait(&asked);
        send_all(other.client, &byte, 1);
        take_all(other.server, &byte, 1);
        sem_post(&answered);
    }
    return unused;
}

static void use_both(int from, int to)
{
    char byte = 'b';
    SHOW(send(from, &byte, 1, 0));
    SHOW(recv(to, &byte, 1, 0));
    sem_post(&asked);
    sem_wait(&answered);
}

static void before(void) { use_both(pair.client, pair.server); }

static void in_parent(void) { use_both(pair.server, pair.client); }

static void in_child(void)
{
    char byte = 'c';
    send_all(pair.client, &byte, 1);
}

int main(void)
{
    pair = promoted();
    other = promoted();
    NEED(sem_init(&asked, 0, 0));
    NEED(sem_init(&answered, 0, 0));
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, works, NULL));
    NEED(-pthread_atfork(before, in_parent, in_child));
    for (int time = 0; time < 3; time++) {
        pid_t child = NEED(fork());
        if (child == 0)
            _exit(0);
        int status;
        NEED(waitpid(child, &status, 0));
        say("child: %d", status);
        char byte = 0;
        SHOW(recv(pair.server, &byte, 1, 0));
        say("%c", byte);
    }
    used(pair);
    used(other);
    return 0;
}
