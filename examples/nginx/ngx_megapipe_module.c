/*
 * An event module that runs nginx's workers on channels:
 *
 *     load_module ngx_megapipe_module.so;
 *     events { use megapipe; }
 *
 * A connection begins as nginx has it: polled, and read and written by nginx's own calls. Once nginx
 * has called its recv(), it is plain TCP, as TLS and the PROXY protocol read the descriptor themselves.
 * From its second wait on, such a connection is the channel's: a read stream brings its bytes, and the
 * answers of HTTP after which it is kept are written quietly. What is too large to copy goes by nginx's
 * own calls, sendfile(2) among them, once the kernel has taken what was written before; and so does what
 * nginx may end by a shutdown(2) of its own. All else stays polled: listeners, upstream servers, TLS,
 * the resolver, the channel to the master.
 *
 * nginx sees edges, as of epoll(7). A poll reports once; it is begun again when its handler has left
 * the event not ready, which means that all was read or written. Until then the event is not active,
 * and nginx adds it itself when it comes to wait.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include <megapipe.h>
#include <poll.h>

/* Answers up to this size are copied and written quietly. */
#define COPIED 16384

/* Buffers held for a connection, at which its reading pauses until nginx has read them all. Some
 * more may be on their way by then. */
#define HELD 4

/* Bytes that came and were not read yet. */
typedef struct segment_s segment_t;

struct segment_s {
    segment_t  *next;
    u_char     *at;
    size_t      left;
    uint32_t    buffer;
};

/* The module's state of a connection, at its place among nginx's. */
typedef struct {
    mp_handle   handle;   /* of a connection that is the channel's */
    mp_op       reading;  /* its read stream; 0: it ended, or pauses */
    mp_op       poll[2];  /* of the read and of the write event */
    segment_t  *first;
    segment_t  *last;
    size_t      bytes;    /* in the segments */
    int         error;
    unsigned    held:16;
    unsigned    plain:1;  /* nginx called recv() */
    unsigned    ended:1;
    unsigned    reported:2; /* in the list of those, for each event */
} state_t;


static void *create_conf(ngx_cycle_t *cycle);
static ngx_int_t init(ngx_cycle_t *cycle, ngx_msec_t timer);
static void done(ngx_cycle_t *cycle);
static ngx_int_t add(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags);
static ngx_int_t del(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags);
static ngx_int_t del_connection(ngx_connection_t *c, ngx_uint_t flags);
static ngx_int_t notify(ngx_event_handler_pt handler);
static ngx_int_t process(ngx_cycle_t *cycle, ngx_msec_t timer, ngx_uint_t flags);


static mp_channel   *channel;
static state_t      *states;
static segment_t    *spare;

/* Events that were reported in this turn, for the next to see whether they wait again. */
static ngx_event_t **reported;
static ngx_uint_t    nreported;

static volatile ngx_event_handler_pt  notified;


static ngx_str_t  name = ngx_string("megapipe");

static ngx_event_module_t  context = {
    &name,
    create_conf,
    NULL,
    { add, del, add, del, NULL, del_connection, notify, process, init, done }
};

ngx_module_t  ngx_megapipe_module = {
    NGX_MODULE_V1,
    &context,
    NULL,                /* directives */
    NGX_EVENT_MODULE,
    NULL,                /* init master */
    NULL,                /* init module */
    NULL,                /* init process */
    NULL,                /* init thread */
    NULL,                /* exit thread */
    done,                /* exit process */
    NULL,                /* exit master */
    NGX_MODULE_V1_PADDING
};


static state_t *
state_of(ngx_connection_t *c)
{
    return &states[c - ngx_cycle->connections];
}


static ngx_int_t
failed(ngx_log_t *log, const char *what, int64_t status)
{
    ngx_log_error(NGX_LOG_ALERT, log, (ngx_err_t) -status, "%s() failed", what);
    return NGX_ERROR;
}


/* ---- Waiting --------------------------------------------------------------------------- */

static ngx_int_t
begin_poll(ngx_event_t *ev)
{
    ngx_connection_t  *c = ev->data;
    mp_op              op;

    op = mp_poll(channel, c->fd, ev->write ? POLLOUT : POLLIN | POLLRDHUP, c);
    if (op < 0) {
        return failed(ev->log, "mp_poll", op);
    }

    state_of(c)->poll[ev->write] = op;
    ev->active = 1;

    return NGX_OK;
}


static void
end_poll(state_t *state, unsigned write)
{
    if (state->poll[write]) {
        mp_cancel(channel, state->poll[write]);
        state->poll[write] = 0;
    }
}


static ngx_int_t
begin_reading(ngx_connection_t *c, state_t *state)
{
    mp_op  op;

    op = mp_read_stream(state->handle);
    if (op < 0) {
        return failed(c->log, "mp_read_stream", op);
    }

    state->reading = op;
    return NGX_OK;
}


/* Gives a connection to the channel. */
static ngx_int_t
take_over(ngx_connection_t *c, state_t *state)
{
    mp_handle  handle;

    handle = mp_register(channel, c->fd, c, NULL, 0);
    if (handle < 0) {
        return failed(c->log, "mp_register", handle);
    }

    state->handle = handle;
    return begin_reading(c, state);
}


static ngx_int_t
add(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags)
{
    ngx_connection_t  *c = ev->data;
    state_t           *state = state_of(c);

    if (!ev->write && state->plain && !state->handle && take_over(c, state) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!ev->write && state->handle) {
        ev->active = 1;
        return NGX_OK;
    }

    return state->poll[ev->write] ? NGX_OK : begin_poll(ev);
}


static ngx_int_t
del(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags)
{
    end_poll(state_of(ev->data), ev->write);
    ev->active = 0;

    return NGX_OK;
}


static void
drop_first(state_t *state)
{
    segment_t  *segment = state->first;

    state->first = segment->next;
    state->held--;
    mp_buffer_release(channel, segment->buffer);
    segment->next = spare;
    spare = segment;
}


static ngx_int_t
del_connection(ngx_connection_t *c, ngx_uint_t flags)
{
    state_t    *state = state_of(c);
    unsigned    in_list = state->reported;

    end_poll(state, 0);
    end_poll(state, 1);
    c->read->active = 0;
    c->write->active = 0;

    if (!(flags & NGX_CLOSE_EVENT)) {
        return NGX_OK;
    }

    while (state->first) {
        drop_first(state);
    }

    if (state->handle && mp_close(state->handle) == 0) {
        /* The channel closes it, behind what is written: nginx does not. */
        c->shared = 1;
    }

    ngx_memzero(state, sizeof(state_t));
    state->reported = in_list;

    return NGX_OK;
}


/* ---- Connections of the channel ---------------------------------------------------------- */

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
        && begin_reading(c, state) != NGX_OK)
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

    mp_flush(channel);

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


/* ---- The loop ----------------------------------------------------------------------------- */

static void
report(ngx_event_t *ev, ngx_uint_t flags)
{
    ngx_connection_t  *c = ev->data;
    state_t           *state = state_of(c);

    ev->ready = 1;

    if (!ev->active) {
        return;
    }

    if (!(state->reported & (1 << ev->write))) {
        state->reported |= 1 << ev->write;
        reported[nreported++] = ev;
    }

    if (flags & NGX_POST_EVENTS) {
        ngx_post_event(ev, ev->accept ? &ngx_posted_accept_events : &ngx_posted_events);
    } else {
        ev->handler(ev);
    }
}


/* Begins the polls anew of those that were reported and have come to an end of it. */
static void
wait_again(void)
{
    state_t      *state;
    ngx_uint_t    i;
    ngx_event_t  *ev;

    for (i = 0; i < nreported; i++) {
        ev = reported[i];
        state = state_of(ev->data);
        state->reported &= ~(1 << ev->write);

        if (!ev->active || state->poll[ev->write] || (state->handle && !ev->write)) {
            continue;
        }

        ev->active = 0;

        /* What the master says is read to its end each time, without a word to the event. */
        if ((!ev->ready || ev->channel) && add(ev, 0, 0) != NGX_OK) {
            ev->error = 1;
        }
    }

    nreported = 0;
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
            mp_buffer_release(channel, event->buffer);
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
        mp_cancel(channel, state->reading);
    }
}


static void
take_read(ngx_connection_t *c, const struct mp_event *event, ngx_uint_t flags)
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
            if (!state->first && begin_reading(c, state) != NGX_OK) {
                state->error = EIO;
            } else {
                return;
            }

        } else if (event->size < 0) {
            state->error = (int) -event->size;
        }
    }

    c->read->available = (int) state->bytes;
    report(c->read, flags);
}


static void
take_poll(ngx_connection_t *c, const struct mp_event *event, ngx_uint_t flags)
{
    state_t      *state = state_of(c);
    ngx_event_t  *ev;

    if (event->op == state->poll[0]) {
        ev = c->read;
        /* How many bytes there are is not known. */
        ev->available = -1;
    } else if (event->op == state->poll[1]) {
        ev = c->write;
    } else {
        return; /* it was cancelled, and its connection may be another one by now */
    }

    state->poll[ev->write] = 0;
    report(ev, flags);
}


static void
take(const struct mp_event *event, ngx_uint_t flags)
{
    ngx_event_t        ev;
    ngx_connection_t  *c = event->cookie;

    switch (event->cmd) {

    case MP_READ:
        take_read(c, event, flags);
        break;

    case MP_POLL:
        take_poll(c, event, flags);
        break;

    case MP_WRITABLE:
        report(c->write, flags);
        break;

    case MP_WRITE: /* a quiet one, which failed */
        state_of(c)->error = (int) -event->size;
        report(c->write, flags);
        break;

    case MP_WAKE:
        if (notified) {
            ngx_memzero(&ev, sizeof(ngx_event_t));
            ev.log = ngx_cycle->log;
            notified(&ev);
        }
        break;
    }
}


static ngx_int_t
process(ngx_cycle_t *cycle, ngx_msec_t timer, ngx_uint_t flags)
{
    int              status;
    int64_t          limit;
    struct mp_event  event;

    wait_again();

    limit = timer == NGX_TIMER_INFINITE ? MP_FOREVER : (int64_t) timer * 1000000;
    status = mp_dispatch(channel, limit, &event);

    if (flags & NGX_UPDATE_TIME || ngx_event_timer_alarm) {
        ngx_time_update();
    }

    if (status == -EINTR) {
        ngx_event_timer_alarm = 0;
        return NGX_OK;
    }

    while (status == 1) {
        take(&event, flags);
        status = mp_next_ready(channel, &event);
    }

    return status < 0 ? failed(cycle->log, "mp_dispatch", status) : NGX_OK;
}


/* May be called by other threads. */
static ngx_int_t
notify(ngx_event_handler_pt handler)
{
    int  status;

    notified = handler;
    status = mp_wakeup(channel);

    return status < 0 ? failed(ngx_cycle->log, "mp_wakeup", status) : NGX_OK;
}


/* ---- The worker --------------------------------------------------------------------------- */

static void *
create_conf(ngx_cycle_t *cycle)
{
    return NGX_CONF_UNSET_PTR;
}


static ngx_int_t
init(ngx_cycle_t *cycle, ngx_msec_t timer)
{
    int               status;
    struct mp_config  config = { .size = sizeof(config) };

    /* As epoll does: what is compared is the way into the kernel. */
    config.spin = MP_SPIN_OFF;

    /* So many that connections which nginx does not read for a while leave some for the others. */
    config.read_buffers = 1024;
    while (config.read_buffers < HELD * cycle->connection_n && config.read_buffers < 1 << 15) {
        config.read_buffers *= 2;
    }

    if (channel == NULL) {
        status = mp_create(&config, &channel);
        if (status < 0) {
            return failed(cycle->log, "mp_create", status);
        }
    }

    states = ngx_calloc(cycle->connection_n * sizeof(state_t), cycle->log);
    reported = ngx_alloc(2 * cycle->connection_n * sizeof(ngx_event_t *), cycle->log);
    if (states == NULL || reported == NULL) {
        return NGX_ERROR;
    }

    ngx_io = ngx_os_io;
    ngx_io.recv = receive;
    ngx_io.recv_chain = receive_chain;
    ngx_io.send = send_bytes;
    ngx_io.send_chain = send_chain;

    ngx_event_actions = context.actions;
    ngx_event_flags = NGX_USE_CLEAR_EVENT;

    return NGX_OK;
}


/* What was written to connections that are closed already goes out. */
static void
done(ngx_cycle_t *cycle)
{
    if (channel) {
        mp_destroy(channel);
        channel = NULL;
    }
}
