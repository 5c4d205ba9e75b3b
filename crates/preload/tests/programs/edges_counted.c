/* An edge-triggered reader that asks FIONREAD how far it may read before it waits again, as nginx
 * does: every upload comes to its end, from a small buffer, too, which is full until what was read
 * is acknowledged. also: auto */
#include "transcript.h"

enum { UPLOADS = 80, PIECE = 16384, LARGEST = 600000 };

static int client;
static unsigned lot = 1;

static unsigned draw(unsigned most)
{
    lot = lot * 1103515245 + 12345;
    return (lot >> 8) % most;
}

static void *uploads(void *nothing)
{
    static char bytes[PIECE];
    for (int upload = 0; upload < UPLOADS; upload++) {
        unsigned size = 1 + draw(LARGEST), at_most = 1 + draw(PIECE);
        if (upload % 3 == 0)
            at_most = 1000;
        if (upload % 3 == 1)
            at_most = PIECE;
        send_all(client, &size, sizeof size);
        for (unsigned sent = 0; sent < size;) {
            unsigned part = 1 + draw(at_most);
            part = part < size - sent ? part : size - sent;
            send_all(client, bytes, part);
            sent += part;
            /* The reader sleeps meanwhile, and has to be woken. */
            if (upload % 3 == 0 ? sent < PIECE * 4 : draw(40) == 0)
                usleep(draw(300));
        }
        char answer;
        take_all(client, &answer, 1);
    }
    return nothing;
}

static struct {
    int fd, set, available;
    bool ready;
} in;

/* Waits for an edge; false: none comes. */
static bool wait_in_set(void)
{
    struct epoll_event event;
    if (epoll_wait(in.set, &event, 1, 10000) != 1)
        return false;
    in.ready = true;
    in.available = -1;
    return true;
}

/* What is there of `size` bytes, or -1: it is to be waited for. */
static int receive(char *bytes, int size)
{
    if (in.available == 0) {
        in.ready = false;
        return -1;
    }
    int count = recv(in.fd, bytes, size, 0);
    if (count <= 0) {
        in.ready = false;
        return -1;
    }
    if (in.available >= 0) {
        in.available -= count;
        if (in.available < 0) {
            /* They came after FIONREAD, and so there is another edge. */
            in.available = 0;
            in.ready = false;
        }
    } else if (count == size) {
        NEED(ioctl(in.fd, FIONREAD, &in.available));
    }
    if (count < size) {
        in.ready = false;
        in.available = 0;
    }
    return count;
}

static bool read_all(char *bytes, unsigned size, unsigned window)
{
    for (unsigned got = 0; got < size;) {
        if (!in.ready && !wait_in_set())
            return false;
        unsigned room = window - got % window;
        room = room < size - got ? room : size - got;
        int count = receive(bytes + got % window, room);
        if (count > 0)
            got += count;
    }
    return true;
}

static void reads(int buffer)
{
    struct pair pair = promoted();
    if (buffer)
        NEED(setsockopt(pair.client, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer));
    nonblocking(pair.server);
    client = pair.client;
    in.fd = pair.server;
    in.set = NEED(epoll_create1(0));
    in.ready = false;
    NEED(add(in.set, in.fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1));
    pthread_t thread;
    pthread_create(&thread, NULL, uploads, NULL);
    static char bytes[PIECE];
    int done = 0;
    for (; done < UPLOADS; done++) {
        unsigned size;
        if (!read_all((char *)&size, sizeof size, sizeof size) || !read_all(bytes, size, PIECE))
            break;
        NEED(send(in.fd, "!", 1, 0));
    }
    say("uploads: %d", done);
    if (done < UPLOADS)
        exit(0);
    pthread_join(thread, NULL);
    close(pair.client);
    close(pair.server);
    close(in.set);
}

int main(void)
{
    reads(0);
    reads(20000);
    return 0;
}
