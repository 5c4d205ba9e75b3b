/* Runs the workers of an unmodified memcached on channels, one each: loaded before libevent, it
 * stands in for the calls of libevent that the workers make, and for read, write, sendmsg and
 * close of their connections. The main thread, which accepts, keeps libevent's loop.
 *
 * Streams are read and written by completions. What else a worker waits for (the eventfd by
 * which it is given connections, UDP) is polled, and stays memcached's to read.
 *
 * Usage: LD_PRELOAD=libmegapipe-memcached.so memcached [ARGUMENT...]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <event2/event.h>
#include <megapipe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Writes up to this size are copied into a buffer of the pool; larger ones are the kernel's. */
#define COPIED 4096
/* Buffers that are held for a connection until its reading pauses: memcached reads no further
 * while it cannot answer. Some more may be on their way by then. */
#define HELD 8

/* Descriptors that workers may have, unless RLIMIT_NOFILE is lower. */
#define FILES (1 << 20)

/* Bytes that came and were not read yet. */
struct segment {
	struct segment *next;
	char *at;
	size_t left;
	uint32_t buffer;
};

/* What a worker waits for, by its descriptor. */
struct file {
	mp_handle handle; /* of a stream; 0: it is polled */
	mp_op reading;    /* the stream's read; 0: it ended, or pauses */
	mp_op poll;
	struct segment *first, *last;
	unsigned held;
	int fd, error;
	short events; /* EV_READ, EV_WRITE and EV_PERSIST; 0: not added */
	char polled;  /* what the poll found, as EV_READ and EV_WRITE */
	char ended, blocked, queued;
	event_callback_fn callback;
	void *argument;
	struct file *next;
};

/* A worker's loop. */
struct loop {
	struct event_base *base;
	mp_channel *channel;
	struct file *first, *last; /* those whose callbacks are due, or that wait for the loop to begin */
	struct segment *spare;
	volatile int stopped;
	struct loop *next;
};

static struct event_base *main_base;
static struct loop *loops; /* made before the workers are, and not changed then */
static struct file *files;
static rlim_t files_max;
static __thread struct loop *own;

/* The function that this one stands in for. */
#define REAL(name) \
	static __typeof__(name) *real; \
	if (!real) \
		real = (__typeof__(real))dlsym(RTLD_NEXT, #name)

static void fail(const char *what, int error)
{
	fprintf(stderr, "megapipe: %s: %s\n", what, strerror(error));
	exit(1);
}

static struct loop *loop_of(const struct event_base *base)
{
	struct loop *loop;

	for (loop = loops; loop && loop->base != base; loop = loop->next)
		;
	return loop;
}

/* The stream of a descriptor, if it is one of this thread's. */
static struct file *stream(int fd)
{
	return own && fd >= 0 && (rlim_t)fd < files_max && files[fd].handle ? &files[fd] : NULL;
}

/* The events that its callback is due for. */
static short due(const struct file *file)
{
	short ready = file->polled;

	if (file->handle) {
		if (file->first || file->ended || file->error)
			ready |= EV_READ;
		if (!file->blocked)
			ready |= EV_WRITE;
	}
	return ready & file->events;
}

static void queue(struct loop *loop, struct file *file)
{
	if (file->queued)
		return;
	file->queued = 1;
	file->next = NULL;
	if (loop->first)
		loop->last->next = file;
	else
		loop->first = file;
	loop->last = file;
}

static void queue_if_due(struct loop *loop, struct file *file)
{
	if (due(file))
		queue(loop, file);
}

static void read_on(struct file *file)
{
	mp_op op = mp_read_stream(file->handle);

	file->reading = op > 0 ? op : 0;
	if (op < 0)
		file->error = (int)-op;
}

static void poll_for(struct loop *loop, struct file *file, short events)
{
	file->poll = mp_poll(loop->channel, file->fd, events, file);
	if (file->poll < 0)
		fail("mp_poll", (int)-file->poll);
}

static void cancel_poll(struct loop *loop, struct file *file)
{
	if (file->poll)
		mp_cancel(loop->channel, file->poll);
	file->poll = 0;
	file->polled = 0;
}

/* Begins to wait for a file as its events say. */
static void start(struct loop *loop, struct file *file)
{
	int type = 0;
	socklen_t size = sizeof(type);

	if (!file->handle && !getsockopt(file->fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_STREAM) {
		file->handle = mp_register(loop->channel, file->fd, file, NULL, 0);
		if (file->handle < 0)
			fail("mp_register", (int)-file->handle);
		read_on(file);
	}
	if (!file->handle && !file->poll && !due(file))
		poll_for(loop, file, (file->events & EV_READ ? POLLIN : 0) | (file->events & EV_WRITE ? POLLOUT : 0));
	queue_if_due(loop, file);
}

static void take_bytes(struct loop *loop, struct file *file, const struct mp_event *event)
{
	struct segment *segment = loop->spare;

	if (segment)
		loop->spare = segment->next;
	else if (!(segment = malloc(sizeof(*segment))))
		fail("malloc", ENOMEM);
	*segment = (struct segment){ .at = event->buf, .left = (size_t)event->size, .buffer = event->buffer };
	if (file->first)
		file->last->next = segment;
	else
		file->first = segment;
	file->last = segment;
	if (++file->held == HELD && file->reading)
		mp_cancel(loop->channel, file->reading);
}

static void drop_first(struct loop *loop, struct file *file)
{
	struct segment *segment = file->first;

	file->first = segment->next;
	file->held--;
	mp_buffer_release(loop->channel, segment->buffer);
	segment->next = loop->spare;
	loop->spare = segment;
}

static void take(struct loop *loop, const struct mp_event *event)
{
	struct file *file = event->cookie;

	switch (event->cmd) {
	case MP_READ:
		if (event->size > 0)
			take_bytes(loop, file, event);
		if (event->more)
			break;
		file->reading = 0;
		if (event->size == 0)
			file->ended = 1;
		else if (event->size != -ECANCELED)
			file->error = (int)-event->size;
		else if (!file->first)
			read_on(file);
		break;
	case MP_WRITE: /* one that failed */
		file->error = (int)-event->size;
		break;
	case MP_WRITABLE:
		file->blocked = 0;
		break;
	case MP_POLL:
		if (event->op != file->poll)
			return; /* cancelled, and perhaps of another file by now */
		file->poll = 0;
		if (file->handle)
			file->blocked = 0;
		else if (event->size < 0 || event->size & (POLLERR | POLLHUP))
			file->polled = EV_READ | EV_WRITE; /* the call says which */
		else
			file->polled = (event->size & POLLIN ? EV_READ : 0) | (event->size & POLLOUT ? EV_WRITE : 0);
		break;
	default:
		return;
	}
	queue_if_due(loop, file);
}

static void run_callbacks(struct loop *loop)
{
	struct file *file = loop->first;

	/* Those that become due meanwhile are for the next round: completions come in between. */
	loop->first = NULL;
	while (file) {
		struct file *next = file->next;
		short ready = due(file);

		file->queued = 0;
		file->polled = 0;
		if (ready && !(file->events & EV_PERSIST))
			file->events = 0;
		if (ready)
			file->callback(file->fd, ready, file->argument);
		if (file->events)
			start(loop, file);
		file = next;
	}
}

/* ---- libevent's calls -------------------------------------------------------------------- */

struct event_base *event_base_new_with_config(const struct event_config *config)
{
	REAL(event_base_new_with_config);
	struct event_base *base = real(config);
	struct loop *loop;

	if (!base)
		return NULL;
	if (!main_base) {
		main_base = base;
		return base;
	}
	if (!files) {
		struct rlimit limit;

		if (getrlimit(RLIMIT_NOFILE, &limit))
			fail("getrlimit", errno);
		files_max = limit.rlim_cur < FILES ? limit.rlim_cur : FILES;
		if (!(files = calloc(files_max, sizeof(*files))))
			fail("a table of descriptors", ENOMEM);
	}
	if (!(loop = calloc(1, sizeof(*loop))))
		fail("calloc", ENOMEM);
	loop->base = base;
	loop->next = loops;
	loops = loop;
	return base;
}

int event_add(struct event *event, const struct timeval *timeout)
{
	REAL(event_add);
	struct loop *loop = loop_of(event_get_base(event));
	struct event_base *base;
	evutil_socket_t fd = event_get_fd(event);
	struct file *file;

	if (!loop)
		return real(event, timeout);
	if (timeout || fd < 0 || (rlim_t)fd >= files_max)
		fail("a worker waits for more than a descriptor", ENOTSUP);
	file = &files[fd];
	event_get_assignment(event, &base, &fd, &file->events, &file->callback, &file->argument);
	file->fd = fd;
	if (loop->channel)
		start(loop, file);
	else
		queue(loop, file);
	return 0;
}

int event_del(struct event *event)
{
	REAL(event_del);
	struct loop *loop = loop_of(event_get_base(event));
	struct file *file;

	if (!loop)
		return real(event);
	file = &files[event_get_fd(event)];
	file->events = 0;
	if (!file->handle)
		cancel_poll(loop, file);
	return 0;
}

int event_base_loop(struct event_base *base, int flags)
{
	REAL(event_base_loop);
	/* As epoll does: what is compared is the way into the kernel. */
	struct mp_config config = { .size = sizeof(config), .spin = MP_SPIN_OFF, .read_buffers = 8192 };
	struct loop *loop = loop_of(base);
	struct file *file;
	struct mp_event event;
	int status;

	if (!loop)
		return real(base, flags);
	status = mp_create(&config, &loop->channel);
	if (status < 0)
		fail("mp_create", -status);
	own = loop;
	file = loop->first;
	loop->first = NULL;
	for (; file; file = file->next) {
		file->queued = 0;
		start(loop, file);
	}
	while (!loop->stopped) {
		status = mp_dispatch(loop->channel, loop->first ? 0 : MP_FOREVER, &event);
		while (status == 1) {
			take(loop, &event);
			status = mp_next_ready(loop->channel, &event);
		}
		if (status < 0 && status != -EINTR)
			fail("mp_dispatch", -status);
		run_callbacks(loop);
	}
	own = NULL;
	mp_destroy(loop->channel);
	return 0;
}

int event_base_loopexit(struct event_base *base, const struct timeval *after)
{
	REAL(event_base_loopexit);
	struct loop *loop = loop_of(base);

	if (!loop)
		return real(base, after);
	loop->stopped = 1;
	if (loop->channel)
		mp_wakeup(loop->channel);
	return 0;
}

/* ---- Calls on connections ---------------------------------------------------------------- */

ssize_t read(int fd, void *to, size_t size)
{
	REAL(read);
	struct file *file = stream(fd);
	size_t got = 0;

	if (!file)
		return real(fd, to, size);
	while (got < size && file->first) {
		struct segment *segment = file->first;
		size_t part = size - got < segment->left ? size - got : segment->left;

		memcpy((char *)to + got, segment->at, part);
		got += part;
		segment->at += part;
		segment->left -= part;
		if (segment->left == 0)
			drop_first(own, file);
	}
	if (!file->first && !file->reading && !file->ended && !file->error)
		read_on(file);
	if (got || size == 0 || (file->ended && !file->error))
		return (ssize_t)got;
	errno = file->error ? file->error : EAGAIN;
	return -1;
}

/* Until there is room: by the channel's word, or by a poll. */
static ssize_t wait_for_room(struct file *file, int by_poll)
{
	file->blocked = 1;
	if (by_poll && !file->poll)
		poll_for(own, file, POLLOUT);
	errno = EAGAIN;
	return -1;
}

static ssize_t write_copy(struct file *file, const struct msghdr *message, size_t size)
{
	char copy[COPIED];
	size_t place = 0, i;
	int status;

	for (i = 0; i < message->msg_iovlen; i++) {
		memcpy(copy + place, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
		place += message->msg_iov[i].iov_len;
	}
	status = mp_write_quiet(file->handle, copy, size);
	if (status == 0)
		return (ssize_t)size;
	if (status == -MP_EQUEUE)
		return wait_for_room(file, 0);
	errno = -status;
	return -1;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	REAL(sendmsg);
	struct file *file = stream(fd);
	size_t size = 0, i;
	ssize_t sent;

	/* On epoll the channel makes this call, too, in the middle of one of ours. */
	if (!file || mp_writes_queued(file->handle) == -MP_EBUSY)
		return real(fd, message, flags);
	if (file->error || file->blocked) {
		errno = file->error ? file->error : EAGAIN;
		return -1;
	}
	for (i = 0; i < message->msg_iovlen; i++)
		size += message->msg_iov[i].iov_len;
	if (size == 0)
		return 0;
	if (size <= COPIED)
		return write_copy(file, message, size);
	mp_flush(own->channel);
	if (mp_writes_queued(file->handle) != 0)
		return wait_for_room(file, 1);
	sent = real(fd, message, flags);
	return sent < 0 && errno == EAGAIN ? wait_for_room(file, 1) : sent;
}

ssize_t write(int fd, const void *from, size_t size)
{
	REAL(write);
	struct iovec whole = { .iov_base = (void *)from, .iov_len = size };
	struct msghdr message = { .msg_iov = &whole, .msg_iovlen = 1 };

	return stream(fd) ? sendmsg(fd, &message, MSG_NOSIGNAL) : real(fd, from, size);
}

int close(int fd)
{
	REAL(close);
	struct file *file = stream(fd);
	mp_handle handle;
	char queued;

	if (!file)
		return real(fd);
	handle = file->handle;
	cancel_poll(own, file);
	while (file->first)
		drop_first(own, file);
	queued = file->queued;
	*file = (struct file){ .queued = queued, .next = file->next };
	return mp_close(handle) < 0 ? real(fd) : 0;
}
