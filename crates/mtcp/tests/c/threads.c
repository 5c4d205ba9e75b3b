/* Contexts come and go in one thread while another calls one: no call finds its context busy, and
 * a stale or invented context is EINVAL. */
#include <assert.h>
#include <errno.h>
#include <mtcp_device.h>
#include <mtcp_epoll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int started, over;

static ssize_t receive(void *user, void *packet, size_t size)
{
	UNUSED(user), UNUSED(packet), UNUSED(size);
	return 0;
}

static int send_nothing(void *user, const void *packet, size_t size)
{
	UNUSED(user), UNUSED(packet), UNUSED(size);
	return 0;
}

static const struct mtcp_device device = {
	.size = sizeof(device), .mtu = 1500, .receive = receive, .send = send_nothing};

static void *call(void *mctx)
{
	for (started = 1; !over;) {
		int id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

		assert(id >= 0 && id < 16);
		assert(mtcp_close(mctx, id) == 0);
	}
	return NULL;
}

int main(void)
{
	struct mtcp_conf conf = {.max_concurrency = 16, .max_num_buffers = 16};
	pthread_t thread;
	mctx_t mine, other;

	assert(mtcp_setconf(&conf) == 0);
	mine = mtcp_create_context_on(&device, "10.0.0.1");
	assert(mine);
	assert(pthread_create(&thread, NULL, call, mine) == 0);
	while (!started)
		;
	for (int i = 0; i < 100; i++) {
		other = mtcp_create_context_on(&device, "10.0.0.2");
		assert(other && other != mine);
		assert(mtcp_socket(other, AF_INET, SOCK_STREAM, 0) == 0);
		mtcp_destroy_context(other);
		assert(mtcp_socket(other, AF_INET, SOCK_STREAM, 0) == -1 && errno == EINVAL);
	}
	over = 1;
	pthread_join(thread, NULL);
	assert(mtcp_socket(NULL, AF_INET, SOCK_STREAM, 0) == -1 && errno == EINVAL);
	assert(mtcp_socket((mctx_t)(intptr_t)-1, AF_INET, SOCK_STREAM, 0) == -1 && errno == EINVAL);
	mtcp_destroy_context(mine);
	mtcp_destroy_context(mine);
	assert(errno == EINVAL);
	puts("done");
	return 0;
}
