/* A stream that lies unread, more of it than any ring holds, goes to another process: that reads all of it. The sender is
 * this process, or another that is writing, or one that waits for an answer meanwhile. */
#include "transcript.h"
#include <inttypes.h>

enum { PIECE = 30000, STEPS = 3 };

/* What the sender does behind the stream: it sends more and waits for the answer, closes, or hands its end on, too. */
enum behind { ENDS, CLOSES, PASSES_ON };

static unsigned char bytes[PIECE];

/* As much as goes without waiting; returns how much was sent by then. */
static uint64_t filled(int fd, uint64_t sent)
{
    for (;;) {
        fill(bytes, sent, sizeof bytes);
        ssize_t count = send(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (count < 0)
            return sent;
        sent += count;
    }
}

/* Reads so much, or to the end; returns how much was read by then. */
static uint64_t read_on(int fd, uint64_t got, uint64_t until)
{
    ssize_t count;
    while (got < until && (count = NEED(recv(fd, bytes, sizeof bytes, 0))) > 0) {
        if (!same(bytes, got, count))
            fail("other bytes");
        got += count;
    }
    return got;
}

/* The process that gets the stream: from that place on, to its end, which it answers. */
static pid_t heir(int channel, int unused, bool answers)
{
    pid_t child = NEED(fork());
    if (child > 0)
        return child;
    close(unused);
    uint64_t got, before;
    take_all(channel, &got, sizeof got);
    int fd = take_fd(channel);
    before = got;
    if (answers)
        send_all(fd, "mine", 4);
    got = read_on(fd, got, UINT64_MAX);
    say("more came: %d", got > before);
    if (answers)
        send_all(fd, &got, sizeof got);
    else
        send_all(channel, &got, sizeof got);
    _exit(0);
}

static void hand_over(int channel, int fd, uint64_t got)
{
    send_all(channel, &got, sizeof got);
    give_fd(channel, fd);
    close(fd);
}

static void ends(int fd, uint64_t sent)
{
    uint64_t arrived;
    char answer[4];
    take_all(fd, answer, sizeof answer);
    NEED(shutdown(fd, SHUT_WR));
    take_all(fd, &arrived, sizeof arrived);
    say("all came: %d", arrived == sent);
    close(fd);
}

/* Reads a little in turns with the sender, so that both lanes have something. */
static uint64_t mixed(struct pair pair, uint64_t *sent)
{
    uint64_t got = 0;
    for (int step = 0; step < STEPS; step++) {
        *sent = filled(pair.client, *sent);
        got = read_on(pair.server, got, got + PIECE);
    }
    return got;
}

/* The other process that gets the sender's end: what waits for room comes before what is sent now. */
static pid_t sender(int channel, int unused)
{
    pid_t child = NEED(fork());
    if (child > 0)
        return child;
    close(unused);
    uint64_t sent;
    take_all(channel, &sent, sizeof sent);
    int fd = take_fd(channel);
    fill(bytes, sent, 1000);
    send_all(fd, bytes, 1000);
    ends(fd, sent + 1000);
    _exit(0);
}

static void by_this_process(bool refilled, enum behind behind)
{
    int channel[2], senders[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, senders));
    pid_t child = heir(channel[1], channel[0], behind != CLOSES);
    pid_t other = behind == PASSES_ON ? sender(senders[1], senders[0]) : 0;
    struct pair pair = promoted();
    uint64_t sent = 0, got = mixed(pair, &sent), arrived;
    if (refilled)
        sent = filled(pair.client, sent);
    hand_over(channel[0], pair.server, got);
    switch (behind) {
    case ENDS:
        fill(bytes, sent, 1000);
        send_all(pair.client, bytes, 1000);
        ends(pair.client, sent + 1000);
        break;
    case CLOSES:
        SHOW(close(pair.client));
        take_all(channel[0], &arrived, sizeof arrived);
        say("all came: %d", arrived == sent);
        break;
    case PASSES_ON:
        hand_over(senders[0], pair.client, sent);
        status_of(other);
        break;
    }
    status_of(child);
    for (int end = 0; end < 2; end++) {
        close(channel[end]);
        close(senders[end]);
    }
}

/* Another process sends: `waits`: it has sent all that goes, and waits for the new owner. */
static void by_another(bool waits)
{
    int channel[2];
    struct sockaddr_in at;
    int listener = listening(&at);
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t sender = NEED(fork());
    if (sender == 0) {
        int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
        uint64_t sent = 0;
        if (waits)
            sent = filled(fd, 0);
        for (; !waits && sent < 200 * PIECE; sent += PIECE) {
            fill(bytes, sent, sizeof bytes);
            send_all(fd, bytes, sizeof bytes);
        }
        ends(fd, sent);
        _exit(0);
    }
    pid_t child = heir(channel[1], channel[0], true);
    int fd = NEED(accept(listener, NULL, NULL));
    uint64_t got = read_on(fd, 0, 3 * PIECE);
    pause_ms(50);
    hand_over(channel[0], fd, got);
    status_of(sender);
    status_of(child);
    close(listener);
    close(channel[0]);
    close(channel[1]);
}

/* The only process that still has it, the child of one that ended its part, executes itself. */
static void by_one_that_executes(void)
{
    struct sockaddr_in at;
    int listener = listening(&at), alone[2];
    pid_t sender = NEED(fork());
    if (sender == 0) {
        int fd = NEED(socket(AF_INET, SOCK_STREAM, 0));
        NEED(connect(fd, (struct sockaddr *)&at, sizeof at));
        uint64_t sent = 0;
        for (; sent < 200 * PIECE; sent += PIECE) {
            fill(bytes, sent, sizeof bytes);
            send_all(fd, bytes, sizeof bytes);
        }
        ends(fd, sent);
        _exit(0);
    }
    int fd = NEED(accept(listener, NULL, NULL));
    uint64_t got = read_on(fd, 0, 3 * PIECE);
    pause_ms(50);
    NEED(pipe2(alone, O_CLOEXEC));
    pid_t child = NEED(fork());
    if (child == 0) {
        char numbers[2][24], byte;
        char *words[] = {"given_back", numbers[0], numbers[1], NULL};
        snprintf(numbers[0], sizeof numbers[0], "%d", fd);
        snprintf(numbers[1], sizeof numbers[1], "%" PRIu64, got);
        close(alone[1]);
        (void)!read(alone[0], &byte, 1);
        execv("/proc/self/exe", words);
        _exit(9);
    }
    close(fd);
    close(alone[1]);
    status_of(sender);
    status_of(child);
    close(alone[0]);
    close(listener);
}

int main(int count, char **words)
{
    if (count == 3) {
        int fd = atoi(words[1]);
        uint64_t got = strtoull(words[2], NULL, 10);
        send_all(fd, "mine", 4);
        got = read_on(fd, got, UINT64_MAX);
        send_all(fd, &got, sizeof got);
        return 0;
    }
    say("# one that executes");
    by_one_that_executes();
    say("# this process");
    for (enum behind behind = ENDS; behind <= PASSES_ON; behind++) {
        by_this_process(false, behind);
        by_this_process(true, behind);
    }
    say("# another, which writes");
    by_another(false);
    say("# another, which waits");
    by_another(true);
    return 0;
}
