/* A connection goes to somebody who knows of no rings while bytes lie unread: by exec, in a
 * message, into stdio. Nothing is lost, and all comes in its order. */
#include "transcript.h"

enum { LITTLE = 5, MUCH = 100000, MORE = 300000 };

/* What the new owner does: checks so many bytes, answers, and copies until the end. */
static int owner(int fd, size_t unread)
{
    unsigned char *bytes = malloc(unread + 1);
    for (size_t done = 0; done < unread;) {
        ssize_t took = recv(fd, bytes + done, unread - done, 0);
        if (took <= 0)
            return 5;
        done += took;
    }
    if (!same(bytes, 0, unread))
        return 6;
    if (send(fd, "right", 5, 0) != 5)
        return 7;
    for (;;) {
        char line[100];
        ssize_t took = recv(fd, line, sizeof line, 0);
        if (took <= 0)
            return took == 0 ? 0 : 8;
        if (send(fd, line, took, 0) != took)
            return 9;
    }
}

static pid_t execute(const char *program, int fd, size_t unread)
{
    pid_t child = NEED(fork());
    if (child == 0) {
        char number[16], count[16];
        snprintf(number, sizeof number, "%d", fd);
        snprintf(count, sizeof count, "%zu", unread);
        char *words[] = {(char *)program, number, count, NULL};
        execv("/proc/self/exe", words);
        _exit(10);
    }
    return child;
}

/* The other end: the answer, and then some lines to and fro. */
static void talk(int fd)
{
    char bytes[16] = {0};
    SHOW(recv(fd, bytes, 5, MSG_WAITALL));
    show_bytes("answer", bytes, 5);
    for (int round = 0; round < 3; round++) {
        SHOW(send(fd, "a line\n", 7, 0));
        SHOW(recv(fd, bytes, 7, MSG_WAITALL));
        show_bytes("copied", bytes, 7);
    }
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(recv(fd, bytes, sizeof bytes, 0));
}

static void send_stream(int fd, size_t count)
{
    unsigned char *bytes = malloc(count);
    fill(bytes, 0, count);
    send_all(fd, bytes, count);
    free(bytes);
}

/* Bytes are sent before the exec, and answered after it. The other end blocks, or waits in
 * poll(2), or in an epoll set. */
static void by_exec(const char *program, size_t unread, int waiting)
{
    say("# exec with %zu unread, the other end waits by %s", unread,
        waiting == 0 ? "recv" : waiting == 1 ? "poll" : "epoll");
    struct pair pair = promoted();
    int set = -1;
    if (waiting == 2) {
        set = NEED(epoll_create1(EPOLL_CLOEXEC));
        NEED(add(set, pair.client, EPOLLIN, 1));
        show_epoll("before", set, 0);
    }
    NEED(fcntl(pair.client, F_SETFD, FD_CLOEXEC));
    send_stream(pair.client, unread);
    pid_t child = execute(program, pair.server, unread);
    close(pair.server);
    if (waiting == 1)
        show_poll("answer", pair.client, POLLIN, 10000);
    if (waiting == 2)
        show_epoll("answer", set, 10000);
    talk(pair.client);
    status_of(child);
    close(pair.client);
    if (set >= 0)
        close(set);
}

/* Reads `count` bytes that begin so far into the stream. */
static void check(int fd, size_t before, size_t count)
{
    unsigned char *bytes = malloc(count + 1);
    for (size_t done = 0; done < count;)
        done += NEED(recv(fd, bytes + done, count - done, 0));
    say("%zu bytes are %s", count, same(bytes, before, count) ? "right" : "wrong");
    free(bytes);
}

/* The other end has ended its sending before the exec, and reads on. */
static void by_exec_behind_the_end(const char *program, size_t unread, bool closes)
{
    say("# exec behind the end with %zu unread, the other end %s", unread, closes ? "has closed" : "reads on");
    struct pair pair = promoted();
    NEED(fcntl(pair.client, F_SETFD, FD_CLOEXEC));
    send_stream(pair.client, unread);
    SHOW(shutdown(pair.client, SHUT_WR));
    SHOW(send(pair.client, "more", 4, MSG_NOSIGNAL));
    show_poll("the server's", pair.server, POLLIN, 10000);
    if (closes)
        SHOW(close(pair.client));
    pid_t child = execute(program, pair.server, unread);
    close(pair.server);
    char bytes[16] = {0};
    if (!closes) {
        SHOW(recv(pair.client, bytes, 5, MSG_WAITALL));
        show_bytes("answer", bytes, 5);
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
        close(pair.client);
    }
    status_of(child);
}

/* So many of the bytes before the end are read here, the others by who gets the connection. */
static void by_message_behind_the_end(size_t count, size_t read)
{
    say("# passed behind the end with %zu of %zu read", read, count);
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    struct pair pair = promoted();
    send_stream(pair.client, count);
    SHOW(shutdown(pair.client, SHUT_WR));
    check(pair.server, 0, read);
    int unread = -1;
    SHOW(ioctl(pair.server, FIONREAD, &unread));
    give_fd(channel[0], pair.server);
    SHOW(close(pair.server));
    int fd = take_fd(channel[1]);
    check(fd, read, count - read);
    char byte;
    SHOW(recv(fd, &byte, 1, 0));
    SHOW(send(fd, "right", 5, 0));
    check(pair.client, 0, 0);
    char bytes[16] = {0};
    SHOW(recv(pair.client, bytes, 5, MSG_WAITALL));
    show_bytes("answer", bytes, 5);
    SHOW(close(fd));
    SHOW(recv(pair.client, bytes, 5, 0));
    close(pair.client);
    close(channel[0]);
    close(channel[1]);
}

/* Nobody hands anything over: the end comes behind all. */
static void read_behind_the_end(size_t count)
{
    say("# read to the end, %zu bytes", count);
    struct pair pair = promoted();
    nonblocking(pair.server);
    send_stream(pair.client, count);
    SHOW(shutdown(pair.client, SHUT_WR));
    check(pair.server, 0, count);
    show_poll("the end", pair.server, POLLIN | POLLRDHUP, 10000);
    char byte;
    SHOW(recv(pair.server, &byte, 1, 0));
    SHOW(send(pair.server, "right", 5, 0));
    char bytes[16] = {0};
    SHOW(recv(pair.client, bytes, 5, MSG_WAITALL));
    SHOW(close(pair.server));
    SHOW(recv(pair.client, bytes, 5, 0));
    close(pair.client);
}

struct sending {
    volatile pid_t thread;
    int fd;
};

static void *sends(void *argument)
{
    struct sending *sending = argument;
    sending->thread = gettid();
    send_stream(sending->fd, 40 * MORE);
    return NULL;
}

/* The other end sends until it has to wait; this one counts before it reads. */
static void read_by_count(void)
{
    say("# read by FIONREAD, %d bytes", 40 * MORE);
    struct pair pair = promoted();
    struct sending sending = {0, pair.client};
    pthread_t thread;
    NEED(-pthread_create(&thread, NULL, sends, &sending));
    until_asleep(&sending.thread);
    unsigned char *bytes = malloc(40 * MORE);
    for (size_t done = 0; done < 40 * MORE;) {
        int count = 0;
        wait_for(pair.server, 1);
        NEED(ioctl(pair.server, FIONREAD, &count));
        if (NEED(recv(pair.server, bytes, count, 0)) != count || !same(bytes, done, count))
            fail("other bytes than were told of");
        done += count;
    }
    NEED(-pthread_join(thread, NULL));
    free(bytes);
    SHOW(close(pair.client));
    SHOW(close(pair.server));
}

/* All is read, but not the end: the other end meets no reset. */
static void closed_before_the_end(size_t count)
{
    say("# closed before the end, %zu bytes", count);
    struct pair pair = promoted();
    send_stream(pair.client, count);
    SHOW(shutdown(pair.client, SHUT_WR));
    check(pair.server, 0, count);
    SHOW(send(pair.server, "right", 5, 0));
    SHOW(close(pair.server));
    char bytes[16] = {0};
    SHOW(recv(pair.client, bytes, 5, MSG_WAITALL));
    SHOW(recv(pair.client, bytes, 5, 0));
    close(pair.client);
}

static void by_message(size_t unread)
{
    say("# passed with %zu unread", unread);
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t child = NEED(fork());
    if (child == 0)
        _exit(owner(take_fd(channel[1]), unread));
    struct pair pair = promoted();
    send_stream(pair.client, unread);
    give_fd(channel[0], pair.server);
    SHOW(close(pair.server));
    talk(pair.client);
    status_of(child);
    close(pair.client);
    close(channel[0]);
    close(channel[1]);
}

/* The one that gave it away goes on with it, too: in turns. */
static void by_both(void)
{
    say("# passed and kept");
    struct pair pair = promoted();
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    SHOW(send(pair.client, "one two ", 8, 0));
    give_fd(channel[0], pair.server);
    int copy = take_fd(channel[1]);
    char bytes[16] = {0};
    SHOW(recv(pair.server, bytes, 4, MSG_WAITALL));
    show_bytes("here", bytes, 4);
    SHOW(recv(copy, bytes, 4, MSG_WAITALL));
    show_bytes("there", bytes, 4);
    SHOW(send(pair.server, "three", 5, 0));
    SHOW(send(copy, "four", 4, 0));
    SHOW(recv(pair.client, bytes, 9, MSG_WAITALL));
    show_bytes("client", bytes, 9);
    SHOW(close(pair.server));
    SHOW(send(pair.client, "five", 4, 0));
    SHOW(recv(copy, bytes, 4, 0));
    SHOW(close(copy));
    SHOW(recv(pair.client, bytes, 4, 0));
    close(pair.client);
    close(channel[0]);
    close(channel[1]);
}

/* The other end has closed before. */
static void by_message_at_the_end(size_t unread, bool nonblocking_too)
{
    say("# passed with %zu unread, and the end", unread);
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    struct pair pair = promoted();
    if (nonblocking_too)
        nonblocking(pair.server);
    send_stream(pair.client, unread);
    SHOW(close(pair.client));
    give_fd(channel[0], pair.server);
    SHOW(close(pair.server));
    int fd = take_fd(channel[1]);
    unsigned char *bytes = malloc(unread + 1);
    for (size_t done = 0; done < unread;)
        done += NEED(recv(fd, bytes + done, unread - done, 0));
    say("they are %s", same(bytes, 0, unread) ? "right" : "wrong");
    SHOW(recv(fd, bytes, 1, 0));
    say("flags: %s", NEED(fcntl(fd, F_GETFL)) & O_NONBLOCK ? "nonblocking" : "none");
    close(fd);
    close(channel[0]);
    close(channel[1]);
}

static void by_stdio(void)
{
    say("# stdio");
    struct pair pair = promoted();
    SHOW(send(pair.client, "first\nsecond\n", 13, 0));
    FILE *file = fdopen(pair.server, "r+");
    char line[64] = {0};
    say("fgets: %s", fgets(line, sizeof line, file) ? line : "nothing");
    say("fgets: %s", fgets(line, sizeof line, file) ? line : "nothing");
    SHOW(send(pair.client, "third\n", 6, 0));
    say("fgets: %s", fgets(line, sizeof line, file) ? line : "nothing");
    SHOW(shutdown(pair.client, SHUT_WR));
    say("fgets: %s", fgets(line, sizeof line, file) ? line : "nothing");
    SHOW(fclose(file));
    close(pair.client);
}

/* Both ends are given away, each with bytes unread at the other only; the sender first, or last. */
static void both_ends(bool sender_first)
{
    say("# the other end was handed over, too, %s", sender_first ? "before" : "after");
    struct pair pair = promoted();
    SHOW(send(pair.client, "hello", 5, 0));
    int channel[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give_fd(channel[0], sender_first ? pair.client : pair.server);
    give_fd(channel[0], sender_first ? pair.server : pair.client);
    int first = take_fd(channel[1]), second = take_fd(channel[1]);
    int server = sender_first ? second : first, client = sender_first ? first : second;
    close(pair.server);
    close(pair.client);
    char bytes[16] = {0};
    SHOW(recv(server, bytes, 5, MSG_WAITALL));
    show_bytes("server", bytes, 5);
    SHOW(send(server, "world", 5, 0));
    SHOW(recv(client, bytes, 5, MSG_WAITALL));
    show_bytes("client", bytes, 5);
    close(server);
    close(client);
    close(channel[0]);
    close(channel[1]);
}

int main(int count, char **arguments)
{
    if (count > 2)
        return owner(atoi(arguments[1]), strtoul(arguments[2], NULL, 10));
    for (int waiting = 0; waiting < 3; waiting++)
        by_exec(arguments[0], LITTLE, waiting);
    by_exec(arguments[0], 0, 0);
    by_exec(arguments[0], MUCH, 0);
    by_message(LITTLE);
    by_message(MUCH);
    by_message_at_the_end(LITTLE, false);
    by_message_at_the_end(MUCH, true);
    by_both();
    by_stdio();
    both_ends(false);
    both_ends(true);
    read_by_count();
    for (int count = 0; count < 4; count++) {
        size_t unread = (size_t[]){0, LITTLE, MUCH, MORE}[count];
        by_exec_behind_the_end(arguments[0], unread, false);
        by_exec_behind_the_end(arguments[0], unread, true);
        by_message_behind_the_end(unread, 0);
        by_message_behind_the_end(unread, unread / 2);
        by_message_behind_the_end(unread, unread);
        read_behind_the_end(unread);
        closed_before_the_end(unread);
    }
    return 0;
}
