/*
 * Many sockets and many messages in one call, for programs with an event loop of their own.
 * Part of libmegapipe; it needs no channel. See recvmmmsg(3), mp_receiver_wait(3) and
 * mp_lowat_set(3).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef MEGAPIPE_MMSG_H
#define MEGAPIPE_MMSG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* These are the system's; for the first one define _GNU_SOURCE before the first #include. */
struct mmsghdr;
struct msghdr;

/* One socket of a call and its messages. */
struct mmep {
	int sockfd; /* the socket */
	int num; /* result: how many messages there were, or a negative errno; to send, before: how many */
	int offset; /* the first of them in the message vector: a result; to send, before */
};

/* A flag of recvmmmsg: before the call, num is the most messages that the socket may have. */
#define MP_LIMITED 0x10000000

int recvmmmsg(struct mmep *eps, int neps, struct mmsghdr *msgs, int vlen, int flags);
int sendmmmsg(struct mmep *eps, int neps, struct mmsghdr *msgs, int vlen, int flags);

/* A train of datagrams as one message (UDP_SEGMENT); room for it, aligned as a struct cmsghdr. */
#define MP_GSO_ROOM 32

int mp_gso_set(struct msghdr *msg, void *room, size_t size, uint16_t segment);

/* Sockets that are registered once, and whose messages come in batches. */
typedef struct mp_receiver mp_receiver;

/* Zero is the default of each field; size is that of the struct, to which later versions add as to struct mp_config. */
struct mp_receiver_config {
	size_t size;
	size_t buffers; /* in the pool; 1024 */
	size_t buffer_size; /* bytes of each; 2048 */
	uint32_t sockets; /* at most; 1024 */
	uint32_t flags; /* MP_RECEIVER_* */
};

#define MP_RECEIVER_ADDRESSES 1u /* tell who sent each message */
#define MP_RECEIVER_GRO 2u /* take trains of datagrams as one message (UDP_GRO) */

/* What a socket had to tell; valid until the next mp_receiver_wait. See mp_receiver_keep. */
struct mp_message {
	int64_t socket; /* what mp_receiver_add returned */
	void *cookie; /* what the socket was registered with */
	const void *buf; /* the data; NULL at an end or an error */
	int64_t size; /* bytes there; 0 and no buf: the end; a negative errno: an error */
	int64_t length; /* what the datagram had, more than size if it was cut off */
	const struct sockaddr *addr; /* who sent it; NULL if that is not known */
	socklen_t addrlen;
	uint32_t segment; /* of a train, the length of each datagram but the last; 0 else */
};

int mp_receiver_create(const struct mp_receiver_config *config, mp_receiver **receiver);
int mp_receiver_destroy(mp_receiver *receiver);
int64_t mp_receiver_add(mp_receiver *receiver, int fd, void *cookie);
int mp_receiver_remove(mp_receiver *receiver, int64_t socket);
int mp_receiver_wait(mp_receiver *receiver, struct mp_message *msgs, int most, int64_t timeout);
int mp_receiver_keep(mp_receiver *receiver, int index);
int mp_receiver_release(mp_receiver *receiver, const void *buf);

/* Low-water marks with a timeout. */
typedef struct mp_lowat mp_lowat;

#define MP_LOWAT_THREAD 1u /* a thread of its own runs it */

int mp_lowat_create(uint32_t flags, mp_lowat **lowat);
int mp_lowat_destroy(mp_lowat *lowat);
int mp_lowat_set(mp_lowat *lowat, int fd, uint32_t mark, int64_t timeout);
int mp_lowat_rearm(mp_lowat *lowat, int fd);
int mp_lowat_clear(mp_lowat *lowat, int fd);
int mp_lowat_fd(mp_lowat *lowat);
int mp_lowat_expire(mp_lowat *lowat);

#ifdef __cplusplus
}
#endif

#endif
