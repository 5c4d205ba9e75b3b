/* select(2) and pselect(2): sets, masks, timeouts. */
#include "transcript.h"
#include <sys/resource.h>

static volatile sig_atomic_t came;

static void noted(int signal)
{
    (void)signal;
    came++;
}

static struct pair pair;
static fd_set in, out, except;

static void ask(bool client_too)
{
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(pair.server, &in);
    FD_SET(pair.server, &except);
    if (client_too) {
        FD_SET(pair.client, &in);
        FD_SET(pair.client, &out);
    }
}

static void tell(void)
{
    say("  server in %d except %d, client in %d out %d", FD_ISSET(pair.server, &in) != 0,
        FD_ISSET(pair.server, &except) != 0, FD_ISSET(pair.client, &in) != 0, FD_ISSET(pair.client, &out) != 0);
}

static void *sender(void *unused)
{
    (void)unused;
    pause_ms(50);
    send_all(pair.client, "late", 4);
    return NULL;
}

enum { HIGH = 1500, BITS = 2048, WORD = 8 * sizeof(unsigned long) };

static void *echoes(void *fd)
{
    echo_all(*(int *)fd, 50, 1);
    return NULL;
}

static void *sends_late(void *fd)
{
    usleep(20000);
    send_all(*(int *)fd, "late", 4);
    return NULL;
}

/* Of descriptors beyond FD_SETSIZE, as programs ask with sets of their own, after waits of another kind. */
static void beyond(int sockets)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
    if (files.rlim_cur < BITS || setrlimit(RLIMIT_NOFILE, &files) < 0)
        return say("no descriptors of %d", HIGH);
    say("# %d beyond", sockets);
    struct pair all[20];
    for (int place = 0; place < sockets; place++) {
        pthread_t echo;
        all[place] = promoted();
        int high = NEED(fcntl(all[place].server, F_DUPFD_CLOEXEC, HIGH));
        close(all[place].server);
        all[place].server = high;
        NEED(-pthread_create(&echo, NULL, echoes, &all[place].server));
        if (!is_echoed(all[place].client, 50, 1))
            fail("echo");
        pthread_join(echo, NULL);
    }
    for (int round = 0; round < 6; round++) {
        unsigned long set[BITS / WORD] = {0};
        pthread_t late;
        int sent = round % 2 ? sockets : 1;
        for (int place = 0; place < sockets; place++)
            set[all[place].server / WORD] |= 1ul << all[place].server % WORD;
        if (sent == 1)
            NEED(-pthread_create(&late, NULL, sends_late, &all[0].client));
        for (int place = 0; place < sent && sent > 1; place++)
            send_all(all[place].client, "here", 4);
        struct timeval limit = {10, 0};
        int ready = select(BITS, (fd_set *)set, NULL, NULL, &limit);
        bool first = set[all[0].server / WORD] >> all[0].server % WORD & 1;
        say("ready: %d, the first: %d", sent == 1 ? ready : ready > 0, sent > 1 || first);
        if (sent == 1)
            pthread_join(late, NULL);
        for (int place = 0; place < sent; place++) {
            char bytes[4];
            take_all(all[place].server, bytes, 4);
        }
    }
    for (int place = 0; place < sockets; place++) {
        close(all[place].client);
        close(all[place].server);
    }
}

int main(void)
{
    beyond(1);
    beyond(20);
    pair = promoted();
    char bytes[16];
    int above = (pair.client > pair.server ? pair.client : pair.server) + 1;
    struct timeval limit = {0, 40000};
    ask(false);
    long began = milliseconds();
    SHOW(select(above, &in, &out, &except, &limit));
    say("it waited: %d, left: %ld.%06ld", milliseconds() - began >= 39, (long)limit.tv_sec, (long)limit.tv_usec);
    tell();
    ask(true);
    SHOW(select(above, &in, &out, &except, NULL));
    tell();
    SHOW(send(pair.client, "abc", 3, 0));
    wait_for(pair.server, 3);
    ask(true);
    limit.tv_sec = 100;
    SHOW(select(above, &in, &out, &except, &limit));
    say("most is left: %d", limit.tv_sec >= 98);
    tell();
    ask(true);
    SHOW(select(pair.server < pair.client ? pair.client : pair.server, &in, NULL, NULL, &(struct timeval){0, 0}));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, sender, NULL);
    ask(false);
    SHOW(select(above, &in, NULL, &except, NULL));
    tell();
    pthread_join(thread, NULL);
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));

    struct sigaction action = {.sa_handler = noted};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t held, none;
    sigemptyset(&none);
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &held, NULL);
    raise(SIGUSR1);
    struct timespec time = {0, 40000000};
    ask(false);
    SHOW(pselect(above, &in, NULL, NULL, &time, NULL));
    say("time untouched: %d, signals: %d", time.tv_nsec == 40000000, came);
    ask(false);
    SHOW(pselect(above, &in, NULL, NULL, NULL, &none));
    say("signals: %d", came);
    tell();

    limit = (struct timeval){0, -1};
    ask(false);
    SHOW(select(above, &in, NULL, NULL, &limit));
    SHOW(select(-1, &in, NULL, NULL, NULL));
    int gone = NEED(dup(pair.client));
    NEED(close(gone));
    ask(false);
    FD_SET(gone, &in);
    SHOW(select(gone + 1, &in, NULL, NULL, NULL));
    SHOW(shutdown(pair.client, SHUT_WR));
    ask(true);
    FD_CLR(pair.client, &out);
    SHOW(select(above, &in, &out, &except, NULL));
    tell();
    return 0;
}
