/*
 * The bytes of connections that are the channel's: a read stream brings them, nginx's recv() takes them, and small
 * answers are written quietly. Of other connections nginx's own calls are made.
 */
#include "ngx_megapipe.h"

#include <ngx_http.h>

/* Answers up to this size are copied and written quietly. */
#define COPIED 16384

/* Bytes that came and were not read yet. */
struct segment_s {
    segment_t  *next;
    u_char     *at;
    size_t      left;
    uint32_t    buffer;
};


static segment_t  *spare;


/* ---- Coming -------------------------------------------------------------------------------- */

ngx_int_t
ngx_megapipe_begin_reading(ngx_connection_t *c, state_t *state)
{
    mp_op  op;

    op = mp_read_stream(state->handle);
    if (op < 0) {
        return failed(c->log, "mp_read_stream", op);
    }

    state->reading = op;
    return NGX_OK;
}


static void
take_bytes(ngx_connection_t *c, state_t *state, const struct mp_event *event)
{
    segment_t  *segment = spare;

    if (segment) {
        spare = segment->next;
    } else {
        segment = ngx_alloc(sizeof(segment_t), c->log);
        if (segment == NULL) {
            mp_buffer_release(ngx_megapipe_channel, event->buffer);
            state->error = ENOMEM;
            return;
        }
    }

    segment->next = NULL;
    segment->at = event->buf;
    segment->left = (size_t) event->size;
    segment->buffer = event->buffer;

    if (state->first) {
        state->last->next = segment;
    } else {
        state->first = segment;
    }
    state->last = segment;
    state->bytes += segment->left;

    if (++state->held == HELD && state->reading) {
        mp_cancel(ngx_megapipe_channel, state->reading);
    }
}


ngx_uint_t
ngx_megapipe_take_read(ngx_connection_t *c, const struct mp_event *event)
{
    state_t  *state = state_of(c);

    if (event->size > 0) {
        take_bytes(c, state, event);
    }

    if (!event->more) {
        state->reading = 0;

        if (event->size == 0) {
            state->ended = 1;
            c->read->pending_eof = 1;

        } else if (event->size == -ECANCELED) {
            if (!state->first && ngx_megapipe_begin_reading(c, state) != NGX_OK) {
                state->error = EIO;
            } else {
                return 0;
            }

        } else if (event->size < 0) {
            state->error = (int) -event->size;
        }
    }

    c->read->available = (int) state->bytes;
    return 1;
}


static void
drop_first(state_t *state)
{
    segment_t  *segment = state->first;

    state->first = segment->next;
    state->held--;
    mp_buffer_release(ngx_megapipe_channel, segment->buffer);
    segment->next = spare;
    spare = segment;
}


void
ngx_megapipe_drop_bytes(state_t *state)
{
    while (state->first) {
        drop_first(state);
    }
}


/* ---- nginx's calls --------------------------------------------------------------------------- */

static ssize_t
receive(ngx_connection_t *c, u_char *to, size_t size)
{
    size_t        part, got;
    state_t      *state = state_of(c);
    segment_t    *segment;
    ngx_event_t  *rev = c->read;

    if (!state->handle) {
        state->plain = c->listening != NULL && c->type == SOCK_STREAM && c->sockaddr->sa_family != AF_UNIX;
        return ngx_os_io.recv(c, to, size);
    }

    for (got = 0; got < size && state->first; got += part) {
        segment = state->first;
        part = ngx_min(size - got, segment->left);
        ngx_memcpy(to + got, segment->at, part);
        segment->at += part;
        segment->left -= part;

        if (segment->left == 0) {
            drop_first(state);
        }
    }

    state->bytes -= got;
    rev->available = (int) state->bytes;
    rev->ready = state->first || ((state->ended || state->error) && got);

    if (!state->first && !state->reading && !state->ended && !state->error
        && ngx_megapipe_begin_reading(c, state) != NGX_OK)
    {
        rev->error = 1;
        return NGX_ERROR;
    }

    if (got) {
        return (ssize_t) got;
    }

    if (state->error) {
        rev->error = 1;
        return ngx_connection_error(c, state->error, "recv() failed");
    }

    if (state->ended) {
        rev->eof = 1;
        return 0;
    }

    return NGX_AGAIN;
}


static ssize_t
receive_chain(ngx_connection_t *c, ngx_chain_t *chain, off_t limit)
{
    size_t   size;
    ssize_t  n, got;

    if (!state_of(c)->handle) {
        return ngx_os_io.recv_chain(c, chain, limit);
    }

    for (got = 0; chain; chain = chain->next) {
        size = chain->buf->end - chain->buf->last;
        if (limit) {
            size = ngx_min(size, (size_t) (limit - got));
        }
        if (size == 0) {
            break;
        }

        n = receive(c, chain->buf->last, size);
        if (n <= 0) {
            return got ? got : n;
        }

        got += n;
        if ((size_t) n < size) {
            break;
        }
    }

    return got;
}


/* Whether nginx keeps the connection after this answer. Else it may shut it down before the batch has
 * gone out: a lingering close does so by a call on the descriptor. */
static ngx_uint_t
is_kept(ngx_connection_t *c)
{
    ngx_http_request_t  *r = c->data;

    return c->listening->handler == ngx_http_init_connection
           && r->signature == NGX_HTTP_MODULE && r->connection == c
           && r->keepalive && !r->reading_body && !ngx_exiting && !ngx_terminate;
}


/* Whether nginx's own calls on the descriptor come behind what was written. Else the write event
 * becomes ready when they do, or may. */
static ngx_uint_t
is_drained(ngx_connection_t *c, state_t *state)
{
    if (!state->handle || mp_writes_queued(state->handle) == 0) {
        return 1;
    }

    mp_flush(ngx_megapipe_channel);

    if (mp_writes_queued(state->handle) <= 0) {
        return 1;
    }

    c->write->ready = 0;
    return 0;
}


static ngx_int_t
write_quietly(ngx_connection_t *c, state_t *state, u_char *bytes, size_t size)
{
    int  status;

    if (state->error) {
        c->write->error = 1;
        return ngx_connection_error(c, state->error, "send() failed");
    }

    status = mp_write_quiet(state->handle, bytes, size);

    if (status == -MP_EQUEUE) {
        c->write->ready = 0;
        return NGX_AGAIN;
    }

    if (status < 0) {
        c->write->error = 1;
        return failed(c->log, "mp_write_quiet", status);
    }

    c->sent += size;
    return NGX_OK;
}


static ssize_t
send_bytes(ngx_connection_t *c, u_char *bytes, size_t size)
{
    state_t    *state = state_of(c);
    ngx_int_t   status;

    if (state->handle && size <= COPIED && is_kept(c)) {
        status = write_quietly(c, state, bytes, size);
        return status == NGX_OK ? (ssize_t) size : status;
    }

    return is_drained(c, state) ? ngx_os_io.send(c, bytes, size) : NGX_AGAIN;
}


/* The bytes of a chain that can be copied, or -1. */
static ssize_t
copied_size(ngx_chain_t *chain)
{
    size_t  size = 0;

    for ( /* void */ ; chain; chain = chain->next) {
        if (ngx_buf_special(chain->buf)) {
            continue;
        }
        if (!ngx_buf_in_memory(chain->buf)) {
            return -1;
        }

        size += chain->buf->last - chain->buf->pos;
        if (size > COPIED) {
            return -1;
        }
    }

    return (ssize_t) size;
}


static ngx_chain_t *
send_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit)
{
    u_char        copy[COPIED], *last;
    ssize_t       size = 0;
    state_t      *state = state_of(c);
    ngx_int_t     status;
    ngx_chain_t  *cl;

    if (!c->write->ready) {
        return in;
    }

    if (state->handle) {
        size = is_kept(c) ? copied_size(in) : -1;
    }

    if (!state->handle || size < 0 || (limit && size > limit)) {
        return is_drained(c, state) ? ngx_os_io.send_chain(c, in, limit) : in;
    }

    last = copy;
    for (cl = in; cl; cl = cl->next) {
        if (!ngx_buf_special(cl->buf)) {
            last = ngx_cpymem(last, cl->buf->pos, cl->buf->last - cl->buf->pos);
        }
    }

    status = size ? write_quietly(c, state, copy, (size_t) size) : NGX_OK;
    if (status != NGX_OK) {
        return status == NGX_AGAIN ? in : NGX_CHAIN_ERROR;
    }

    return ngx_chain_update_sent(in, size);
}


void
ngx_megapipe_set_calls(void)
{
    ngx_io = ngx_os_io;
    ngx_io.recv = receive;
    ngx_io.recv_chain = receive_chain;
    ngx_io.send = send_bytes;
    ngx_io.send_chain = send_chain;
}
