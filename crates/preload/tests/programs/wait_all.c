/* MSG_WAITALL: waits for all, over several messages, is cut short by the end, and by signals. */
#include "transcript.h"

static struct pair pair;

static void *sender(void *unused)
{
    (void)unused;
    for (int part = 0; part < 5; part++) {
        pause_ms(5);
        send_all(pair.client, "12345678", 8);
    }
    return NULL;
}

static void nothing(int signal)
{
    (void)signal;
}

static pthread_t reader;

static void *interrupter(void *unused)
{
    (void)unused;
    send_all(pair.client, "abc", 3);
    wait_for(pair.server, 0);
    pause_ms(300);
    pthread_kill(reader, SIGUSR1);
    return NULL;
}

int main(void)
{
    char bytes[64] = {0};
    pthread_t thread;
    pair = promoted();
    pthread_create(&thread, NULL, sender, NULL);
    SHOW(recv(pair.server, bytes, 40, MSG_WAITALL));
    show_bytes("recv", bytes, 40);
    pthread_join(thread, NULL);

    struct iovec two[2] = {{bytes, 3}, {bytes + 3, 21}};
    struct msghdr head = {.msg_iov = two, .msg_iovlen = 2};
    pthread_create(&thread, NULL, sender, NULL);
    SHOW(recvmsg(pair.server, &head, MSG_WAITALL));
    SHOW(recv(pair.server, bytes, 16, MSG_WAITALL));
    pthread_join(thread, NULL);

    SHOW(send(pair.client, "part", 4, 0));
    wait_for(pair.server, 4);
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL | MSG_DONTWAIT));
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL | MSG_DONTWAIT));

    /* Interrupted after some bytes: these. */
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    reader = pthread_self();
    pthread_create(&thread, NULL, interrupter, NULL);
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    pthread_join(thread, NULL);

    nonblocking(pair.server);
    SHOW(send(pair.client, "part", 4, 0));
    wait_for(pair.server, 4);
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    NEED(fcntl(pair.server, F_SETFL, 0));
    SHOW(send(pair.client, "last", 4, 0));
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    return 0;
}
