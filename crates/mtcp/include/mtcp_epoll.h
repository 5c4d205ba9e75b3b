/* Epoll sets for mtcp_api.h: any number in a context, by level (the default), by edge
 * (MTCP_EPOLLET) or once (MTCP_EPOLLONESHOT), as epoll(7). Experimental. */
#ifndef MTCP_EPOLL_H
#define MTCP_EPOLL_H

#include "mtcp_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum mtcp_epoll_op {
	MTCP_EPOLL_CTL_ADD = 1,
	MTCP_EPOLL_CTL_DEL = 2,
	MTCP_EPOLL_CTL_MOD = 3,
};

/* IN, OUT, ERR, RDHUP, ONESHOT and ET have an effect. ERR is always reported, HUP never. An event has
 * one bit; the next wait has the next. */
enum mtcp_event_type {
	MTCP_EPOLLNONE = 0,
	MTCP_EPOLLIN = 0x1,
	MTCP_EPOLLPRI = 0x2,
	MTCP_EPOLLOUT = 0x4,
	MTCP_EPOLLERR = 0x8,
	MTCP_EPOLLHUP = 0x10,
	MTCP_EPOLLRDNORM = 0x40,
	MTCP_EPOLLRDBAND = 0x80,
	MTCP_EPOLLWRNORM = 0x100,
	MTCP_EPOLLWRBAND = 0x200,
	MTCP_EPOLLMSG = 0x400,
	MTCP_EPOLLRDHUP = 0x2000,
	MTCP_EPOLLONESHOT = 0x40000000,
	MTCP_EPOLLET = -0x7fffffff - 1,
};

typedef union mtcp_epoll_data {
	void *ptr;
	int sockid;
	uint32_t u32;
	uint64_t u64;
} mtcp_epoll_data_t;

struct mtcp_epoll_event {
	uint32_t events;
	mtcp_epoll_data_t data;
};

int mtcp_epoll_create(mctx_t mctx, int size);
int mtcp_epoll_create1(mctx_t mctx, int flags);
int mtcp_epoll_ctl(mctx_t mctx, int epid, int op, int sockid, struct mtcp_epoll_event *event);

/* Milliseconds; negative for ever. EINTR after a handler of mtcp_register_signal. */
int mtcp_epoll_wait(mctx_t mctx, int epid, struct mtcp_epoll_event *events, int maxevents,
		    int timeout);

/* The name of one event, such as "IN", not to be changed or freed. */
char *EventToString(uint32_t event);

#ifdef __cplusplus
}
#endif

#endif
