/* libevent as memcached uses it: plain persistent events and the program's own recv and send
 * (bufferevents would copy every byte once more), one event_base per thread. */

#include <errno.h>
#include <event2/event.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct server {
    struct event_base *base;
    const char *response;
    size_t size;
    char *scratch;
    size_t scratch_size;
};

struct connection {
    struct server *server;
    struct event *readable;
    struct event *writable; /* made when first needed */
    size_t arrived;
    size_t unsent;
};

static void end(struct connection *connection)
{
    evutil_socket_t socket = event_get_fd(connection->readable);

    event_free(connection->readable);
    if (connection->writable)
        event_free(connection->writable);
    free(connection);
    close(socket);
}

static void on_writable(evutil_socket_t socket, short what, void *argument);

/* Sends what is owed; returns 0 if the connection is over. */
static int pay(struct connection *connection, evutil_socket_t socket)
{
    struct server *server = connection->server;

    while (connection->unsent > 0) {
        size_t rest = (connection->unsent - 1) % server->size + 1;
        ssize_t count = send(socket, server->response + server->size - rest, rest, MSG_NOSIGNAL);

        if (count >= 0) {
            connection->unsent -= (size_t)count;
        } else if (errno == EAGAIN) {
            if (!connection->writable)
                connection->writable =
                    event_new(server->base, socket, EV_WRITE, on_writable, connection);
            return connection->writable && event_add(connection->writable, NULL) == 0;
        } else if (errno != EINTR) {
            return 0;
        }
    }
    return 1;
}

static void on_writable(evutil_socket_t socket, short what, void *argument)
{
    struct connection *connection = argument;

    (void)what;
    if (!pay(connection, socket))
        end(connection);
}

static void on_readable(evutil_socket_t socket, short what, void *argument)
{
    struct connection *connection = argument;
    struct server *server = connection->server;
    ssize_t count;

    (void)what;
    do {
        count = recv(socket, server->scratch, server->scratch_size, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return; /* level-triggered: it will be reported again */
        if (count <= 0)
            return end(connection);
        connection->arrived += (size_t)count;
        connection->unsent += connection->arrived / server->size * server->size;
        connection->arrived %= server->size;
        if (!pay(connection, socket))
            return end(connection);
    } while ((size_t)count == server->scratch_size);
}

static void on_connection(evutil_socket_t listener, short what, void *argument)
{
    struct server *server = argument;

    (void)what;
    for (;;) {
        struct connection *connection;
        int socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (socket < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            if (errno != EAGAIN)
                event_base_loopbreak(server->base);
            return;
        }
        connection = calloc(1, sizeof(*connection));
        if (!connection) {
            close(socket);
            continue;
        }
        connection->server = server;
        connection->readable =
            event_new(server->base, socket, EV_READ | EV_PERSIST, on_readable, connection);
        if (!connection->readable || event_add(connection->readable, NULL) != 0) {
            if (connection->readable)
                event_free(connection->readable);
            free(connection);
            close(socket);
        }
    }
}

/* Calls `ready(context)` once it would serve; returns a negative errno if it cannot go on. */
int bench_libevent_serve(int listener, size_t size, void (*ready)(const void *),
                         const void *context)
{
    struct event_config *config = event_config_new();
    struct server server = { .size = size, .scratch_size = 64 << 10 };
    struct event *incoming;

    if (!config)
        return -ENOMEM;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    server.base = event_base_new_with_config(config);
    event_config_free(config);
    server.response = calloc(1, size);
    server.scratch = malloc(server.scratch_size);
    if (!server.base || !server.response || !server.scratch)
        return -ENOMEM;
    incoming = event_new(server.base, listener, EV_READ | EV_PERSIST, on_connection, &server);
    if (!incoming || event_add(incoming, NULL) != 0)
        return -ENOMEM;
    ready(context);
    event_base_dispatch(server.base);
    return -EIO;
}
