/*
 * What the module's two files share: the channel, its state of a connection, and what one does for the other.
 */
#ifndef NGX_MEGAPIPE_H
#define NGX_MEGAPIPE_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include <megapipe.h>

/* Buffers held for a connection, at which its reading pauses until nginx has read them all. Some
 * more may be on their way by then. */
#define HELD 4

typedef struct segment_s segment_t;

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


extern mp_channel  *ngx_megapipe_channel;
extern state_t     *ngx_megapipe_states;


static inline state_t *
state_of(ngx_connection_t *c)
{
    return &ngx_megapipe_states[c - ngx_cycle->connections];
}


static inline ngx_int_t
failed(ngx_log_t *log, const char *what, int64_t status)
{
    ngx_log_error(NGX_LOG_ALERT, log, (ngx_err_t) -status, "%s() failed", what);
    return NGX_ERROR;
}


/* Has nginx read and write by the channel where a connection is the channel's. */
void ngx_megapipe_set_calls(void);

/* Begins the read stream of a connection that is the channel's. */
ngx_int_t ngx_megapipe_begin_reading(ngx_connection_t *c, state_t *state);

/* Takes what the read stream brought; whether the read event is to be reported. */
ngx_uint_t ngx_megapipe_take_read(ngx_connection_t *c, const struct mp_event *event);

/* Gives back what was not read. */
void ngx_megapipe_drop_bytes(state_t *state);

#endif
