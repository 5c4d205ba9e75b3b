/* libuv as its guide advises: one loop per thread, uv_read_start into one shared buffer, and
 * uv_try_write first, so that a request object is needed only where the socket is full. */

#include <errno.h>
#include <stdlib.h>
#include <uv.h>

struct server {
    uv_loop_t loop;
    uv_tcp_t listener;
    char *response;
    size_t size;
    char *scratch;
    size_t scratch_size;
};

struct connection {
    uv_tcp_t tcp;
    size_t arrived;
};

static void on_closed(uv_handle_t *handle)
{
    free(handle);
}

static void on_written(uv_write_t *request, int status)
{
    (void)status; /* a failed connection ends in on_read */
    free(request);
}

static void on_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct server *server = handle->loop->data;

    (void)suggested;
    *buffer = uv_buf_init(server->scratch, (unsigned int)server->scratch_size);
}

static int answer(struct server *server, uv_stream_t *stream)
{
    uv_buf_t buffer = uv_buf_init(server->response, (unsigned int)server->size);
    int written = uv_try_write(stream, &buffer, 1);
    uv_write_t *request;

    if (written == (int)server->size)
        return 0;
    if (written < 0 && written != UV_EAGAIN)
        return written;
    if (written > 0)
        buffer = uv_buf_init(server->response + written, (unsigned int)(server->size - written));
    request = malloc(sizeof(*request));
    if (!request)
        return UV_ENOMEM;
    return uv_write(request, stream, &buffer, 1, on_written);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct connection *connection = (struct connection *)stream;
    struct server *server = stream->loop->data;

    (void)buffer;
    if (count > 0) {
        connection->arrived += (size_t)count;
        while (connection->arrived >= server->size) {
            connection->arrived -= server->size;
            if (answer(server, stream) < 0) {
                count = UV_EOF;
                break;
            }
        }
    }
    if (count < 0)
        uv_close((uv_handle_t *)stream, on_closed);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct connection *connection;

    if (status < 0)
        return;
    connection = calloc(1, sizeof(*connection));
    if (!connection || uv_tcp_init(listener->loop, &connection->tcp) != 0) {
        free(connection);
        return;
    }
    if (uv_accept(listener, (uv_stream_t *)&connection->tcp) != 0 ||
        uv_read_start((uv_stream_t *)&connection->tcp, on_allocate, on_read) != 0)
        uv_close((uv_handle_t *)&connection->tcp, on_closed);
}

/* Calls `ready(context)` once it would serve; returns a negative errno if it cannot go on. */
int bench_libuv_serve(int listener, size_t size, void (*ready)(const void *), const void *context)
{
    struct server *server = calloc(1, sizeof(*server));
    int error;

    if (!server)
        return -ENOMEM;
    server->size = size;
    server->scratch_size = 64 << 10;
    server->response = calloc(1, size);
    server->scratch = malloc(server->scratch_size);
    if (!server->response || !server->scratch)
        return -ENOMEM;
    if ((error = uv_loop_init(&server->loop)) != 0 ||
        (error = uv_tcp_init(&server->loop, &server->listener)) != 0 ||
        (error = uv_tcp_open(&server->listener, listener)) != 0 ||
        (error = uv_listen((uv_stream_t *)&server->listener, 65535, on_connection)) != 0)
        return error;
    server->loop.data = server;
    ready(context);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    return -EIO;
}
