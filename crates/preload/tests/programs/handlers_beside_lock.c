/* A thread hands a connection over whose other end does not answer, which takes long; another one that uses it meanwhile
 * runs the handler of a signal all the same. */
#include "transcript.h"

static int fd;
static volatile sig_atomic_t handled;

static void handles(int signal)
{
    handled = signal;
}

static void *hands_over(void *unused)
{
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give_fd(channel[0], fd);
    return unused;
}

static void *uses(void *unused)
{
    char byte;
    recv(fd, &byte, 1, MSG_DONTWAIT);
    while (!handled)
        usleep(1000);
    return unused;
}

/* The other end: fills the ring and the kernel's buffers, thrice, and is idle from then on. */
static void fills(struct sockaddr_in at, int told)
{
    static char bytes[1 << 16];
    int own = NEED(socket(AF_INET, SOCK_STREAM, 0));
    NEED(connect(own, (struct sockaddr *)&at, sizeof at));
    for (int time = 0; time < 4; time++) {
        echo_all(own, 100, 1);
        NEED(fcntl(own, F_SETFL, O_NONBLOCK));
        long all = 0;
        for (long sent; (sent = send(own, bytes, sizeof bytes, 0)) > 0;)
            all += sent;
        NEED(fcntl(own, F_SETFL, 0));
        NEED(write(told, &all, sizeof all));
    }
    for (;;)
        pause();
}

int main(void)
{
    static char bytes[1 << 16];
    struct sockaddr_in at;
    int listener = listening(&at), told[2];
    NEED(pipe(told));
    pid_t child = NEED(fork());
    if (child == 0)
        fills(at, told[1]);
    fd = NEED(accept(listener, NULL, NULL));
    for (int time = 0; time < 4; time++) {
        if (!is_echoed(fd, 100, 1))
            fail("an answer");
        long left;
        NEED(read(told[0], &left, sizeof left));
        while (time < 3 && left > 0)
            left -= NEED(recv(fd, bytes, sizeof bytes, 0));
    }
    signal(SIGUSR1, handles);
    pthread_t one, other;
    NEED(-pthread_create(&one, NULL, hands_over, NULL));
    usleep(200000);
    NEED(-pthread_create(&other, NULL, uses, NULL));
    usleep(200000);
    NEED(-pthread_kill(other, SIGUSR1));
    long began = milliseconds();
    while (!handled && milliseconds() < began + 60000)
        usleep(1000);
    say("handled %s", milliseconds() < began + 10000 ? "soon" : "late");
    NEED(kill(child, SIGKILL));
    NEED(waitpid(child, NULL, 0));
    pthread_join(other, NULL);
    pthread_join(one, NULL);
    return 0;
}
