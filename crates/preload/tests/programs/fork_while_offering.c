/* Forks while another thread offers connections: those of the children are promoted, too. */
#include "transcript.h"

enum { CHILDREN = 60 };

static volatile bool over;

static void *offers(void *nothing)
{
    while (!over) {
        struct pair pair = connected();
        close(pair.client);
        close(pair.server);
    }
    return nothing;
}

int main(void)
{
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, offers, NULL));
    int right = 0;
    for (int child = 0; child < CHILDREN; child++) {
        pid_t pid = NEED(fork());
        if (pid == 0) {
            promoted();
            _exit(0);
        }
        int status;
        NEED(waitpid(pid, &status, 0));
        right += status == 0;
    }
    over = true;
    pthread_join(thread, NULL);
    say("right: %d", right);
    return 0;
}
