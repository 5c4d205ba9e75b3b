/* A connection goes from one thread's epoll set to another's while its other end answers: each answer
 * comes whole, whichever set has it. */
#include "transcript.h"

enum { CONNECTIONS = 20, ROUNDS = 400, ANSWER = 4337 };

static int client;

static void *answers(void *nothing)
{
    static char answer[ANSWER];
    char request;
    while (recv(client, &request, 1, 0) == 1)
        for (int sent = 0; sent < ANSWER;) {
            int part = sent < 2000 ? 1000 : ANSWER - sent;
            send_all(client, answer, part);
            sent += part;
        }
    return nothing;
}

/* Reads an answer as the set tells of it; false: it does not come. */
static bool whole(int set, int fd)
{
    char bytes[1500];
    for (int got = 0; got < ANSWER;) {
        struct epoll_event event;
        if (epoll_wait(set, &event, 1, 10000) != 1)
            return false;
        int count;
        while ((count = recv(fd, bytes, sizeof bytes, 0)) > 0)
            got += count;
        if (count == 0 || errno != EAGAIN)
            return false;
    }
    return true;
}

int main(void)
{
    int sets[2] = {NEED(epoll_create1(0)), NEED(epoll_create1(0))};
    int told = 0;
    for (int connection = 0; connection < CONNECTIONS; connection++) {
        struct pair pair = promoted();
        client = pair.client;
        nonblocking(pair.server);
        pthread_t thread;
        pthread_create(&thread, NULL, answers, NULL);
        NEED(add(sets[0], pair.server, EPOLLIN, 1));
        for (int round = 0; round < ROUNDS; round++) {
            int from = sets[round % 2], to = sets[(round + 1) % 2];
            send_all(pair.server, "?", 1);
            if (connection % 2) {
                NEED(add(to, pair.server, EPOLLIN, 1));
                NEED(epoll_ctl(from, EPOLL_CTL_DEL, pair.server, NULL));
            } else {
                NEED(epoll_ctl(from, EPOLL_CTL_DEL, pair.server, NULL));
                NEED(add(to, pair.server, EPOLLIN, 1));
            }
            if (!whole(to, pair.server)) {
                say("no answer to %d of %d", round, connection);
                return 1;
            }
            told++;
        }
        NEED(shutdown(pair.server, SHUT_WR));
        pthread_join(thread, NULL);
        close(pair.client);
        close(pair.server);
    }
    say("answers: %d", told);
    return 0;
}
