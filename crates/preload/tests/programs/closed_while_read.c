/* A connection that one thread waits for bytes of is shut down and closed by another, and a new one takes its
 * number: the old reader hears the end of its own, and the new one's bytes are its own. */
#include "transcript.h"

static struct sockaddr_in at;
static int listener;
static volatile pid_t reader;

/* Nothing else is made or closed between two connections. */
static struct pair another(void)
{
    struct pair pair = {.client = NEED(socket(AF_INET, SOCK_STREAM, 0))};
    NEED(connect(pair.client, (struct sockaddr *)&at, sizeof at));
    pair.server = NEED(accept(listener, NULL, NULL));
    return pair;
}

static void *old_reader(void *fd)
{
    char bytes[64];
    reader = gettid();
    ssize_t count = recv(*(int *)fd, bytes, sizeof bytes, 0);
    if (count != 0)
        say("the old reader got %zd", count);
    return NULL;
}

enum { UP = 4 << 20, DOWN = 20000 };

static void *serves(void *fd)
{
    static char bytes[65536];
    for (size_t done = 0; done < UP;)
        done += NEED(recv(*(int *)fd, bytes, sizeof bytes, 0));
    for (int sent = 0; sent < DOWN; sent += 100) {
        memset(bytes, 'a' + sent / 100 % 26, 100);
        send_all(*(int *)fd, bytes, 100);
    }
    return NULL;
}

static void *reads(void *fd)
{
    char byte;
    for (int taken = 0; taken < DOWN; taken++) {
        if (recv(*(int *)fd, &byte, 1, 0) != 1)
            fail("the answer");
        if (byte != 'a' + taken / 100 % 26) {
            say("byte %d is %02x", taken, (unsigned char)byte);
            _exit(5);
        }
    }
    return NULL;
}

int main(void)
{
    listener = listening(&at);
    for (int round = 0; round < 20; round++) {
        struct pair old = another();
        pthread_t thread, server, client;
        reader = 0;
        pthread_create(&thread, NULL, old_reader, &old.client);
        until_asleep(&reader);
        NEED(shutdown(old.client, SHUT_RDWR));
        close(old.client);
        struct pair new = another();
        pthread_create(&server, NULL, serves, &new.server);
        pthread_create(&client, NULL, reads, &new.client);
        usleep(3000);
        static char bytes[4096];
        for (size_t done = 0; done < UP; done += sizeof bytes) {
            send_all(new.client, bytes, sizeof bytes);
            if (done == 1 << 20)
                usleep(1000); /* for an answer of the monitor */
        }
        pthread_join(thread, NULL);
        pthread_join(server, NULL);
        pthread_join(client, NULL);
        close(new.client);
        close(new.server);
        close(old.server);
    }
    say("all right");
    return 0;
}
