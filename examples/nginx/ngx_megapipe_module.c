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
#include "ngx_megapipe.h"

#include <poll.h>


static void *create_conf(ngx_cycle_t *cycle);
static ngx_int_t init(ngx_cycle_t *cycle, ngx_msec_t timer);
static void done(ngx_cycle_t *cycle);
static ngx_int_t add(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags);
static ngx_int_t del(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags);
static ngx_int_t del_connection(ngx_connection_t *c, ngx_uint_t flags);
static ngx_int_t notify(ngx_event_handler_pt handler);
static ngx_int_t process(ngx_cycle_t *cycle, ngx_msec_t timer, ngx_uint_t flags);


mp_channel  *ngx_megapipe_channel;
state_t     *ngx_megapipe_states;

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


/* ---- Waiting --------------------------------------------------------------------------- */

static ngx_int_t
begin_poll(ngx_event_t *ev)
{
    ngx_connection_t  *c = ev->data;
    mp_op              op;

    op = mp_poll(ngx_megapipe_channel, c->fd, ev->write ? POLLOUT : POLLIN | POLLRDHUP, c);
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
        mp_cancel(ngx_megapipe_channel, state->poll[write]);
        state->poll[write] = 0;
    }
}


/* Gives a connection to the channel. */
static ngx_int_t
take_over(ngx_connection_t *c, state_t *state)
{
    mp_handle  handle;

    handle = mp_register(ngx_megapipe_channel, c->fd, c, NULL, 0);
    if (handle < 0) {
        return failed(c->log, "mp_register", handle);
    }

    state->handle = handle;
    return ngx_megapipe_begin_reading(c, state);
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

    ngx_megapipe_drop_bytes(state);

    if (state->handle && mp_close(state->handle) == 0) {
        /* The ngx_megapipe_channel closes it, behind what is written: nginx does not. */
        c->shared = 1;
    }

    ngx_memzero(state, sizeof(state_t));
    state->reported = in_list;

    return NGX_OK;
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
        if (ngx_megapipe_take_read(c, event)) {
            report(c->read, flags);
        }
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
    status = mp_dispatch(ngx_megapipe_channel, limit, &event);

    if (flags & NGX_UPDATE_TIME || ngx_event_timer_alarm) {
        ngx_time_update();
    }

    if (status == -EINTR) {
        ngx_event_timer_alarm = 0;
        return NGX_OK;
    }

    while (status == 1) {
        take(&event, flags);
        status = mp_next_ready(ngx_megapipe_channel, &event);
    }

    return status < 0 ? failed(cycle->log, "mp_dispatch", status) : NGX_OK;
}


/* May be called by other threads. */
static ngx_int_t
notify(ngx_event_handler_pt handler)
{
    int  status;

    notified = handler;
    status = mp_wakeup(ngx_megapipe_channel);

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

    if (ngx_megapipe_channel == NULL) {
        status = mp_create(&config, &ngx_megapipe_channel);
        if (status < 0) {
            return failed(cycle->log, "mp_create", status);
        }
    }

    ngx_megapipe_states = ngx_calloc(cycle->connection_n * sizeof(state_t), cycle->log);
    reported = ngx_alloc(2 * cycle->connection_n * sizeof(ngx_event_t *), cycle->log);
    if (ngx_megapipe_states == NULL || reported == NULL) {
        return NGX_ERROR;
    }

    ngx_megapipe_set_calls();

    ngx_event_actions = context.actions;
    ngx_event_flags = NGX_USE_CLEAR_EVENT;

    return NGX_OK;
}


/* What was written to connections that are closed already goes out. */
static void
done(ngx_cycle_t *cycle)
{
    if (ngx_megapipe_channel) {
        mp_destroy(ngx_megapipe_channel);
        ngx_megapipe_channel = NULL;
    }
}
