/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * megapipe.h - completion-based, batched, per-core I/O after MegaPipe (OSDI 2012)
 *
 * A channel belongs to the thread that made it. Files are registered with it and become
 * handles; calls on handles queue operations; mp_dispatch() hands out their completions.
 * megapipe(7) is the introduction, and each call has a page in section 3.
 *
 * Every call that can fail returns a negative errno. Operations return a number above 0,
 * of use to mp_cancel() only, and safe to compare with 0 when kept in an int.
 *
 * Memory given to a read or write stays the operation's until its completion was
 * dispatched, or mp_close(), mp_reset(), mp_unregister() or mp_destroy() returned.
 */
#ifndef MEGAPIPE_H
#define MEGAPIPE_H

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MP_VERSION "0.1.0"

/* One thread's pipe to the kernel. */
typedef struct mp_channel mp_channel;

/* A registered file; always above 0. Stale, for ever, once closed or unregistered. */
typedef int64_t mp_handle;

/* A queued operation; always above 0. */
typedef int64_t mp_op;

/* ---- Errors with a meaning of their own (all calls return them negated) ------------- */

#define MP_EHANDLES     ENOSPC          /* mp_config.handles_max handles are registered */
#define MP_EOPERATIONS  ENOBUFS         /* mp_config.operations_max operations pend */
#define MP_EQUEUE       EAGAIN          /* mp_config.write_queue_max writes queue on the handle */
#define MP_ELWSOCKETS   EXFULL          /* mp_config.lwsockets_max lightweight sockets exist */
#define MP_ECHANNELS    EUSERS          /* the process has 1023 channels */
#define MP_EWRONGTHREAD EPERM           /* the channel belongs to another thread */
#define MP_EFORKED      ECHILD          /* the channel belongs to the parent process */
#define MP_EBUSY        EBUSY           /* called from a signal handler during a call */
#define MP_EBROKEN      ENOTRECOVERABLE /* a defect of the library; only mp_destroy() works */

/* ---- Channels ----------------------------------------------------------------------- */

enum mp_engine {
	MP_ENGINE_AUTO = 0,  /* io_uring if the kernel allows it, else epoll */
	MP_ENGINE_URING = 1,
	MP_ENGINE_EPOLL = 2
};

enum mp_spin {
	MP_SPIN_AUTO = 0,    /* spin for two or three wake-ups before sleeping, where that has lately paid */
	MP_SPIN_OFF = 1,     /* sleep at once */
	MP_SPIN_FOR = 2      /* spin for spin_ns before each sleep, unless others want the core */
};

enum mp_promotion {
	MP_PROMOTION_OFF = 0,   /* every connection stays in the kernel */
	MP_PROMOTION_AUTO = 1,  /* busy ones on this host move to shared memory */
	MP_PROMOTION_EAGER = 2  /* all on this host do, as soon as they are connected */
};

/*
 * The settings of a channel. A field that is 0 has its default (in brackets), so
 * { .size = sizeof(struct mp_config) } is a valid configuration, as is NULL.
 *
 * Later versions add fields at the end. The library takes the struct of an older program,
 * in which they are 0, and that of a newer one if the fields that it does not know are 0.
 */
struct mp_config {
	size_t   size;                /* sizeof(struct mp_config) */
	uint32_t engine;              /* enum mp_engine; MEGAPIPE_ENGINE=uring|epoll overrides it */
	uint32_t batch_threshold;     /* requests that queue before they go to the kernel [128] */
	uint32_t operations_max;      /* operations pending at once [2^20, at most 2^24] */
	uint32_t handles_max;         /* handles registered at once [2^20, which is the most] */
	uint32_t lwsockets_max;       /* lightweight sockets at once [2^16, at most 2^24] */
	uint32_t read_buffers;        /* pool buffers for reads, a power of two [1024, at most 2^15] */
	uint32_t buffer_size;         /* bytes of a pool buffer [4096, 256 to 2^20] */
	uint32_t write_buffers;       /* pool buffers for quiet writes [1024, at most 65535] */
	uint32_t write_queue_max;     /* writes queued on one handle [64, at most 2^24] */
	uint32_t spin;                /* enum mp_spin */
	int64_t  spin_ns;             /* with MP_SPIN_FOR */
	int64_t  close_timeout_ns;    /* how long a close waits for queued writes [30 s] */
	uint32_t latency_completions; /* a wait goes on until so many completions are there... */
	uint32_t reserved;            /* 0 */
	int64_t  latency_delay_ns;    /* ...or, with one or more there, for so long */
	uint32_t promotion;           /* enum mp_promotion */
	uint32_t ring_buffers;        /* pool buffers for reads from shared memory [64, at most 65535] */
};

struct mp_stats {
	uint64_t completions;     /* completions handed out */
	uint64_t turns;           /* times the engine submitted, waited and fetched */
	uint64_t system_calls;    /* system calls on the data path */
	uint64_t pool_dry;        /* reads paused for want of a pool buffer */
	uint64_t accepts_paused;  /* accepts paused for want of slots or descriptors */
	uint64_t close_timeouts;  /* connections reset because close_timeout_ns was over */
	uint64_t promoted;           /* connections that moved to shared memory */
	uint64_t promotions_refused; /* offers that led to no promotion */
	uint64_t ring_reads;         /* reads served from shared memory */
	uint64_t ring_writes;        /* writes that went to shared memory as a whole */
	uint64_t bells;              /* times a sleeping peer was woken over TCP */
	uint64_t spills;             /* times a full ring sent what followed through the kernel */
	uint64_t packets_received;   /* packets that stacks took from their devices */
	uint64_t packets_sent;       /* packets that stacks gave to their devices */
	uint64_t segments_unowned;   /* segments of no connection or listener of a stack */
	uint64_t foreign_sent;       /* packets handed to other stacks of the device */
	uint64_t foreign_received;   /* packets that other stacks of the device handed over */
	uint64_t foreign_dropped;    /* packets lost since too many were on their way to other stacks */
	uint64_t doorbells;          /* times a sleeping peer was woken by its doorbell */
};

const char *mp_version(void);
int mp_config_init(struct mp_config *config, size_t size);
int mp_create(const struct mp_config *config, mp_channel **channel);
int mp_destroy(mp_channel *channel);
const char *mp_engine_name(mp_channel *channel);
int mp_stats(mp_channel *channel, struct mp_stats *stats, size_t size);

/* The one call that other threads may make. */
int mp_wakeup(mp_channel *channel);

/* ---- Completions -------------------------------------------------------------------- */

enum mp_cmd {
	MP_ACCEPT = 1,       /* fd: the connection, or -1 with size: -errno */
	MP_CONNECT = 2,      /* size: 0 or -errno */
	MP_READ = 3,         /* size: bytes, 0 at end of file, or -errno */
	MP_WRITE = 4,        /* size: bytes, which are all, or -errno */
	MP_DISCONNECT = 5,   /* size: 0 or -errno; also of mp_shutdown() */
	MP_TIMER = 6,        /* size: 0, or -ECANCELED */
	MP_WAKE = 7,         /* mp_wakeup() was called */
	MP_WRITABLE = 8,     /* half of the write queue is free, after MP_EQUEUE */
	MP_POLL = 9          /* size: POLLIN and the like, or -errno */
};

struct mp_event {
	void     *cookie;    /* of the handle, timer or poll; NULL with MP_WAKE */
	mp_handle handle;    /* 0 with MP_TIMER, MP_POLL and MP_WAKE */
	mp_op     op;        /* what mp_read() etc. returned; 0 with MP_WAKE */
	int64_t   size;      /* the result: see enum mp_cmd */
	void     *buf;       /* the bytes read, or the memory that was given to the operation */
	const struct sockaddr *addr; /* sender of a datagram in a pool buffer, or peer with MP_ACCEPT_PEER;
				      until the next dispatch */
	socklen_t addrlen;
	uint32_t  cmd;       /* enum mp_cmd */
	int       fd;        /* with MP_ACCEPT: descriptor or lightweight socket; else -1 */
	uint32_t  buffer;    /* pool buffer of buf, for mp_buffer_release(); 0: none */
	uint8_t   more;      /* the operation goes on: more completions of it will come */
	uint8_t   pending;   /* with MP_ACCEPT: more connections wait */
	uint8_t   truncated; /* the datagram was longer than the buffer */
	uint8_t   reserved[21];
};

#define MP_FOREVER (-1)

/* 1: *event is filled; 0: the time is over. timeout_ns < 0 waits for ever. */
int mp_dispatch(mp_channel *channel, int64_t timeout_ns, struct mp_event *event);
/* 1: *event is filled, without a system call; 0: nothing is here, call mp_dispatch(). */
int mp_next_ready(mp_channel *channel, struct mp_event *event);
int mp_flush(mp_channel *channel);
int mp_cancel(mp_channel *channel, mp_op op);
mp_op mp_timer(mp_channel *channel, int64_t after_ns, void *cookie);
int mp_move_timer(mp_channel *channel, mp_op timer, int64_t after_ns);
int mp_buffer_release(mp_channel *channel, uint32_t buffer);
/* Completes once, when a descriptor that stays the caller's is ready. events: POLLIN and the like of
 * <poll.h>. Cancel it before the descriptor is closed. */
mp_op mp_poll(mp_channel *channel, int fd, short events, void *cookie);

/* ---- Handles ------------------------------------------------------------------------ */

/* Takes fd over, unless cpu_mask makes the handle a member of a partitioned listener. */
mp_handle mp_register(mp_channel *channel, int fd, void *cookie,
		      const cpu_set_t *cpu_mask, size_t cpu_mask_size);
/* The descriptor or lightweight socket, which is the caller's again. */
int mp_unregister(mp_handle handle);
int mp_close(mp_handle handle);
int mp_reset(mp_handle handle);
int mp_set_cookie(mp_handle handle, void *cookie);
int mp_set_cpu_mask(mp_handle handle, const cpu_set_t *cpu_mask, size_t cpu_mask_size);

/* ---- Connections and data ----------------------------------------------------------- */

#define MP_UNLIMITED (-1)

#define MP_ACCEPT_LWSOCKET 1 /* connections become lightweight sockets, not descriptors */
#define MP_ACCEPT_PEER 2     /* each comes with its peer's address; one a turn */

/* count: 1 or more, or MP_UNLIMITED. flags: 0, or MP_ACCEPT_LWSOCKET | MP_ACCEPT_PEER. */
mp_op mp_accept(mp_handle handle, int count, int flags);
mp_op mp_connect(mp_handle handle, const struct sockaddr *addr, socklen_t addrlen);
mp_op mp_disconnect(mp_handle handle);
mp_op mp_shutdown(mp_handle handle, int how);

mp_op mp_read(mp_handle handle, void *buf, size_t size);
mp_op mp_read_at(mp_handle handle, void *buf, size_t size, uint64_t offset);
mp_op mp_readv(mp_handle handle, const struct iovec *iov, int iovcnt);
/* Into buffers of the pool: once, or until end of file. */
mp_op mp_read_buffer(mp_handle handle);
mp_op mp_read_stream(mp_handle handle);
/* As mp_read_stream, of which the program holds at most quota (1 or more) buffers at once. */
mp_op mp_read_stream_quota(mp_handle handle, uint16_t quota);

mp_op mp_write(mp_handle handle, const void *buf, size_t size);
mp_op mp_write_at(mp_handle handle, const void *buf, size_t size, uint64_t offset);
mp_op mp_writev(mp_handle handle, const struct iovec *iov, int iovcnt);
mp_op mp_sendto(mp_handle handle, const void *buf, size_t size,
		const struct sockaddr *addr, socklen_t addrlen);
/* 0: buf was copied, or the pool buffer taken; a completion comes only if the write fails. */
int mp_write_quiet(mp_handle handle, const void *buf, size_t size);
int mp_write_buffer(mp_handle handle, uint32_t buffer);
/* Writes of the handle that the kernel has not taken. At 0, sendfile() and the like come behind them. */
int mp_writes_queued(mp_handle handle);

/* ---- Sockets ------------------------------------------------------------------------ */

/* A socket that listens on addr, and one that connects to it (MP_CONNECT has the outcome). */
mp_handle mp_listen_on(mp_channel *channel, const struct sockaddr *addr, socklen_t addrlen,
		       int backlog, void *cookie);
mp_handle mp_connect_to(mp_channel *channel, const struct sockaddr *addr, socklen_t addrlen,
			void *cookie);
/* Experimental: a TCP in user space on a TUN device, for the sockets that these two make on its
 * addresses ("10.78.0.2/24", with at most one of IPv6 behind a comma) and in their prefixes. */
int mp_attach_tun(mp_channel *channel, const char *name, const char *addresses);
/* The same on a free one of so many queues of one device: each of as many threads makes this call. */
int mp_attach_tun_queue(mp_channel *channel, const char *name, const char *addresses, unsigned queues);
int mp_setsockopt(mp_handle handle, int level, int name, const void *value, socklen_t len);
int mp_getsockopt(mp_handle handle, int level, int name, void *value, socklen_t *len);
int mp_getsockname(mp_handle handle, struct sockaddr *addr, socklen_t *addrlen);
int mp_getpeername(mp_handle handle, struct sockaddr *addr, socklen_t *addrlen);

/* Lightweight sockets are numbers with bit 30 set, which no descriptor has. */
int mp_lwsocket_to_fd(mp_channel *channel, int lwsocket);
int mp_fd_to_lwsocket(mp_channel *channel, int fd);
int mp_lwsocket_close(mp_channel *channel, int lwsocket);

#ifdef __cplusplus
}
#endif

#endif /* MEGAPIPE_H */
