/* Both ends go to another program, one after the other, over unread bytes that went through the kernel. */
#include "transcript.h"

static void leave(bool client_first, bool half_closed)
{
    struct pair pair = promoted();
    int channel[2];
    char room[64];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    if (half_closed) {
        SHOW(shutdown(pair.client, SHUT_WR));
        SHOW(recv(pair.server, room, sizeof room, 0));
        SHOW(send(pair.server, "fifteen bytes..", 15, 0));
    } else {
        SHOW(send(pair.server, "fifteen ", 8, MSG_MORE));
        SHOW(send(pair.server, "bytes..", 7, 0));
    }
    give_fd(channel[0], client_first ? pair.client : pair.server);
    give_fd(channel[0], client_first ? pair.server : pair.client);
    wait_for(pair.client, 15);
    SHOW(recv(pair.client, room, sizeof room, 0));
    SHOW(recv(pair.client, room, sizeof room, MSG_DONTWAIT));
    if (!half_closed)
        used(pair);
    close(pair.client);
    close(pair.server);
}

/* What the first leaves unread the other sends again at once, and needs no wake-up for that, behind which it could not leave. */
static void cross(bool client_first)
{
    struct pair pair = promoted();
    int channel[2];
    char room[64];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    SHOW(send(pair.client, "through ", 8, MSG_MORE));
    SHOW(send(pair.client, "the kernel", 10, 0));
    SHOW(send(pair.server, "otherwise", 9, 0));
    give_fd(channel[0], client_first ? pair.client : pair.server);
    give_fd(channel[0], client_first ? pair.server : pair.client);
    wait_for(pair.client, 9);
    wait_for(pair.server, 18);
    show_bytes("client", room, NEED(recv(pair.client, room, sizeof room, 0)));
    show_bytes("server", room, NEED(recv(pair.server, room, sizeof room, 0)));
    used(pair);
    close(pair.client);
    close(pair.server);
}

int main(void)
{
    for (int way = 0; way < 4; way++) {
        say("client first: %d, half closed: %d", way & 1, way >> 1);
        leave(way & 1, way & 2);
    }
    for (int way = 0; way < 2; way++) {
        say("unread at both, client first: %d", way);
        cross(way);
    }
    return 0;
}
