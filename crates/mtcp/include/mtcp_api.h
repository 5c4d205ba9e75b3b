/* The calls of mTCP (NSDI 2014) over Megapipe's TCP in user space: for programs that were written
 * for mTCP, and compile unchanged. Experimental. What differs is in docs/mtcp.md.
 *
 * Threads that share a context take turns; one that waits leaves it to the others. A signal handler
 * that interrupts a call on a context gets EBUSY from its own. All calls return -1, or NULL, and set
 * errno on errors. Each context has a thread in which its stack runs; with `stack_thread = none` in
 * the configuration, packets move while a program waits in mtcp_epoll_wait or in a call that blocks,
 * or is answered EAGAIN. A forked child gets ECHILD from its parent's contexts with a thread.
 *
 * Link with -lmegapipe_mtcp. */
#ifndef MTCP_API_H
#define MTCP_API_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef UNUSED
#define UNUSED(x) (void)(x)
#endif

#ifndef INPORT_ANY
#define INPORT_ANY ((uint16_t)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of sockets inside mTCP. Nothing here takes or returns one. */
enum socket_type {
	MTCP_SOCK_UNUSED,
	MTCP_SOCK_STREAM,
	MTCP_SOCK_PROXY,
	MTCP_SOCK_LISTENER,
	MTCP_SOCK_EPOLL,
	MTCP_SOCK_PIPE,
};

struct mtcp_conf {
	int num_cores;       /* contexts, each on a queue of the device */
	int max_concurrency; /* connections of a context */
	int max_num_buffers; /* connections of a context with unread or unacknowledged bytes */
	int rcvbuf_size;     /* unread bytes of a connection */
	int sndbuf_size;     /* unacknowledged bytes of a connection */
	int tcp_timewait;    /* seconds of TIME_WAIT */
	int tcp_timeout;     /* seconds after which an idle connection ends; -1 for never */
};

typedef struct mtcp_context *mctx_t;
typedef void (*mtcp_sighandler_t)(int);

/* Reads the configuration file. MEGAPIPE_STACK=tun:NAME,ADDRESS/PREFIX in the environment names
 * the device, or the file's `io = tun` and `port = tun:NAME,ADDRESS/PREFIX`. MEGAPIPE_STACK_THREAD, or the
 * file's `stack_thread`, is own, other or none: where stacks run. */
int mtcp_init(const char *config_file);
void mtcp_destroy(void);

int mtcp_getconf(struct mtcp_conf *conf);
int mtcp_setconf(const struct mtcp_conf *conf);

int mtcp_core_affinitize(int cpu);

/* One context for each CPU. The device is made, with num_cores queues, by the first. */
mctx_t mtcp_create_context(int cpu);

/* Sends what was written for a second at most. Waits of other threads end with EINTR. If all threads
 * of the context have ended before and another context is there, what was written may be lost. */
void mtcp_destroy_context(mctx_t mctx);

/* The handler ends the waits of all contexts: EINTR. */
mtcp_sighandler_t mtcp_register_signal(int signum, mtcp_sighandler_t handler);

/* pipeid[0] reads what pipeid[1] writes, in the same context: between its threads, and they block
 * until mtcp_setsock_nonblock. */
int mtcp_pipe(mctx_t mctx, int pipeid[2]);

/* SO_ERROR, SO_KEEPALIVE, SO_LINGER, TCP_NODELAY, TCP_CORK, TCP_MAXSEG; ENOSYS for others. */
int mtcp_getsockopt(mctx_t mctx, int sockid, int level, int optname, void *optval,
		    socklen_t *optlen);

/* SO_KEEPALIVE, SO_LINGER, TCP_NODELAY, TCP_CORK, TCP_MAXSEG; others have no effect. */
int mtcp_setsockopt(mctx_t mctx, int sockid, int level, int optname, const void *optval,
		    socklen_t optlen);

int mtcp_setsock_nonblock(mctx_t mctx, int sockid);

/* FIONREAD and FIONBIO. */
int mtcp_socket_ioctl(mctx_t mctx, int sockid, int request, void *argp);

/* SOCK_STREAM of AF_INET, or of AF_INET6, which mTCP does not have. */
int mtcp_socket(mctx_t mctx, int domain, int type, int protocol);

int mtcp_bind(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);
int mtcp_listen(mctx_t mctx, int sockid, int backlog);
int mtcp_accept(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/* Where there are several contexts: learns from which ports connections to this peer are answered
 * on the queue of this one. mtcp_connect does so otherwise. Only the first of num_addr addresses is
 * used. */
int mtcp_init_rss(mctx_t mctx, in_addr_t saddr_base, int num_addr, in_addr_t daddr,
		  in_addr_t dport);

int mtcp_connect(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/* Of sockets, epoll sets and pipes. */
int mtcp_close(mctx_t mctx, int sockid);

/* Resets the connection. */
int mtcp_abort(mctx_t mctx, int sockid);

int mtcp_getsockname(mctx_t mctx, int sock, struct sockaddr *addr, socklen_t *addrlen);
int mtcp_getpeername(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

ssize_t mtcp_read(mctx_t mctx, int sockid, char *buf, size_t len);

/* Flags: MSG_PEEK, MSG_DONTWAIT. */
ssize_t mtcp_recv(mctx_t mctx, int sockid, char *buf, size_t len, int flags);
int mtcp_readv(mctx_t mctx, int sockid, const struct iovec *iov, int numIOV);

ssize_t mtcp_write(mctx_t mctx, int sockid, const char *buf, size_t len);
int mtcp_writev(mctx_t mctx, int sockid, const struct iovec *iov, int numIOV);

#ifdef __cplusplus
}
#endif

#endif
