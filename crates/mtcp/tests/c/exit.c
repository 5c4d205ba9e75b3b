/* exit(3) inside a call: by a function of the device, or by the handler of a signal. */
#include <assert.h>
#include <mtcp_device.h>
#include <mtcp_epoll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void end(int signal)
{
	UNUSED(signal);
	exit(0);
}

static ssize_t receive(void *by_signal, void *packet, size_t size)
{
	UNUSED(packet);
	UNUSED(size);
	if (by_signal)
		raise(SIGTERM);
	exit(0);
}

static int send_packet(void *user, const void *packet, size_t size)
{
	UNUSED(user);
	UNUSED(packet);
	UNUSED(size);
	return 0;
}

int main(int argc, char **argv)
{
	struct mtcp_device device = {.size = sizeof(device), .mtu = 1500, .receive = receive, .send = send_packet};
	struct mtcp_epoll_event event;
	mctx_t mctx;

	assert(argc == 2 && signal(SIGTERM, end) != SIG_ERR);
	device.user = strcmp(argv[1], "handler") == 0 ? &device : NULL;
	mctx = mtcp_create_context_on(&device, "10.0.0.1");
	mtcp_epoll_wait(mctx, mtcp_epoll_create(mctx, 1), &event, 1, 0);
	return 1;
}
