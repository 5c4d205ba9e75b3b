/* What ends a sleep in select(2) beside promoted sockets, and what each set says then: the sleep is in ppoll(2), which has
 * doorbells beside the sets, and reports more than these ask for. */
#include "transcript.h"

static struct pair pair;
static int ends[2];

enum event { BYTE, PIPED, HANGS_UP, URGENT, CLOSES };

static void *later(void *event)
{
    usleep(20000);
    switch ((enum event)(intptr_t)event) {
    case BYTE:
        send_all(pair.client, "b", 1);
        break;
    case PIPED:
        NEED(write(ends[1], "p", 1));
        break;
    case HANGS_UP:
        close(ends[1]);
        usleep(20000);
        send_all(pair.client, "b", 1);
        break;
    case URGENT:
        NEED(send(pair.client, "u", 1, MSG_OOB));
        break;
    case CLOSES:
        NEED(shutdown(pair.client, SHUT_WR));
        break;
    }
    return NULL;
}

struct asked {
    fd_set read, write, except;
};

static void one(fd_set *set, int fd)
{
    FD_SET(fd, set);
}

static void shows(const char *what, struct asked asked, enum event event)
{
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, later, (void *)(intptr_t)event));
    int most = pair.server > ends[0] ? pair.server : ends[0];
    int ready = select(most + 1, &asked.read, &asked.write, &asked.except, &(struct timeval){10, 0});
    say("%s: %d; socket %d%d%d, pipe %d%d%d", what, ready, FD_ISSET(pair.server, &asked.read) != 0,
        FD_ISSET(pair.server, &asked.write) != 0, FD_ISSET(pair.server, &asked.except) != 0,
        FD_ISSET(ends[0], &asked.read) != 0, FD_ISSET(ends[0], &asked.write) != 0,
        FD_ISSET(ends[0], &asked.except) != 0);
    pthread_join(thread, NULL);
}

static void takes(void)
{
    char bytes[8];
    NEED(recv(pair.server, bytes, sizeof bytes, MSG_DONTWAIT));
}

static void answers_selected(struct sockaddr_in at)
{
    int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
    char byte;
    for (;;) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (select(fd + 1, &set, NULL, NULL, NULL) != 1 || recv(fd, &byte, 1, MSG_DONTWAIT) <= 0)
            _exit(0);
        send_all(fd, &byte, 1);
    }
}

/* One that sleeps in select(2) is stopped, so that what wakes it stays where it is. */
static void is_woken_by_doorbell(void)
{
    struct sockaddr_in at;
    int listener = listening(&at), most = 0;
    pid_t child = NEED(fork());
    if (child == 0)
        answers_selected(at);
    int fd = NEED(accept(listener, NULL, NULL));
    close(listener);
    for (int round = 0; round < 20; round++) {
        if (!is_echoed(fd, 8, 1))
            fail("an answer");
        usleep(2000);
        wait_until(child, 'S');
        NEED(kill(child, SIGSTOP));
        wait_until(child, 'T');
        int before = announced();
        send_all(fd, "x", 1);
        int came = announced() - before;
        most = came > most ? came : most;
        NEED(kill(child, SIGCONT));
        char byte;
        take_all(fd, &byte, 1);
    }
    if (eager() && most == 0)
        say("by no doorbell");
    close(fd);
    NEED(waitpid(child, NULL, 0));
}

int main(void)
{
    is_woken_by_doorbell();
    pair = promoted();
    NEED(pipe(ends));
    struct asked none = {0}, asked = {0};
    FD_ZERO(&none.read);
    FD_ZERO(&none.write);
    FD_ZERO(&none.except);

    asked = none;
    one(&asked.read, pair.server);
    one(&asked.read, ends[0]);
    shows("a byte", asked, BYTE);
    takes();
    shows("the pipe", asked, PIPED);
    char byte;
    NEED(read(ends[0], &byte, 1));
    one(&asked.except, pair.server);
    one(&asked.except, ends[0]);
    shows("a byte, with exceptions", asked, BYTE);
    takes();
    one(&asked.write, pair.server);
    shows("room", asked, BYTE);
    usleep(20000);
    takes();

    say("# a descriptor that is closed");
    fd_set set = none.read;
    one(&set, pair.server);
    one(&set, 60);
    SHOW(select(61, &set, NULL, NULL, &(struct timeval){0, 20000}));
    set = none.read;
    one(&set, pair.server);
    SHOW(select(pair.server + 1, &set, NULL, NULL, &(struct timeval){0, 20000}));

    say("# a hangup that nobody asks for");
    asked = none;
    one(&asked.read, pair.server);
    one(&asked.except, ends[0]);
    shows("hangup", asked, HANGS_UP);
    takes();
    say("# urgent bytes, and the end");
    asked = none;
    one(&asked.read, pair.server);
    one(&asked.except, pair.server);
    shows("urgent", asked, URGENT);
    shows("the end", asked, CLOSES);
    return 0;
}
