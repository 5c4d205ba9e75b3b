/* Contexts of mtcp_api.h on packets and a clock of the caller's. mTCP has no such calls.
 * Experimental. */
#ifndef MTCP_DEVICE_H
#define MTCP_DEVICE_H

#include "mtcp_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Packets are whole, from the IP header on, with checksums. The functions are called by the threads
 * that use the context, and make no call on it themselves. If there are several threads, calls of
 * another one run while one is inside `wait`, and do not end it. */
struct mtcp_device {
	size_t size; /* sizeof(struct mtcp_device) */
	void *user;  /* passed to each function */
	size_t mtu;  /* longest packet, 576 to 65535 */

	/* Writes one received packet of at most `size` bytes. Returns its length, or 0 if none
	 * is there. */
	ssize_t (*receive)(void *user, void *packet, size_t size);

	/* Sends a packet. Returns 0, or -1 if it is to be tried again. */
	int (*send)(void *user, const void *packet, size_t size);

	/* Microseconds, which never go back. NULL: the machine's clock. */
	uint64_t (*now)(void *user);

	/* Sleeps until packets arrive or so many microseconds have passed; -1: for ever.
	 * Returns 0, or -1 for EINTR. NULL: no call waits; mtcp_epoll_wait returns 0 at once, and
	 * others fail with EAGAIN. */
	int (*wait)(void *user, int64_t microseconds);
};

/* A context that answers for these addresses, "10.0.0.2" or "10.0.0.2,fd00::2". Needs no
 * mtcp_init; the settings of mtcp_setconf apply. The device is copied. */
mctx_t mtcp_create_context_on(const struct mtcp_device *device, const char *addresses);

#ifdef __cplusplus
}
#endif

#endif
