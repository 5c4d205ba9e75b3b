/* Threads make and close sets while the process forks: a child can make sets, too. */
#include "transcript.h"

static volatile bool over;

static void *makes(void *nothing)
{
    while (!over)
        close(NEED(epoll_create1(0)));
    return nothing;
}

int main(void)
{
    pthread_t threads[3];
    struct pair pair = promoted();
    for (int at = 0; at < 3; at++)
        pthread_create(&threads[at], NULL, makes, NULL);
    int hung = 0;
    for (int round = 0; round < 300 && hung == 0; round++) {
        pid_t child = NEED(fork());
        if (child == 0) {
            alarm(20);
            _exit(epoll_create1(0) < 0);
        }
        int status;
        NEED(waitpid(child, &status, 0));
        hung += status != 0;
    }
    over = true;
    for (int at = 0; at < 3; at++)
        pthread_join(threads[at], NULL);
    say("%d hung", hung);
    char byte;
    SHOW(send(pair.client, "x", 1, 0));
    SHOW(recv(pair.server, &byte, 1, 0));
    return 0;
}
