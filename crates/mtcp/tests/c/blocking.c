/* Calls that wait: connects to ADDRESS and PORT, exchanges bytes with an echo server, more than fit
 * into any buffer, and is refused by the next port. Usage: blocking ADDRESS PORT */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <mtcp_epoll.h>
#include <stdlib.h>
#include <string.h>

static char out[1 << 20], in[1 << 20];

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	size_t written, got;
	mctx_t mctx;
	ssize_t n;
	int id;

	assert(argc == 3);
	to.sin_addr.s_addr = inet_addr(argv[1]);
	to.sin_port = htons(atoi(argv[2]));
	assert(mtcp_init(NULL) == 0);
	mctx = mtcp_create_context(0);
	assert(mctx);
	id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_connect(mctx, id, (struct sockaddr *)&to, sizeof(to)) == 0);
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = i ^ i >> 8;
	for (int round = 0; round < 3; round++) {
		for (written = 0; written < sizeof(out); written += n) {
			n = mtcp_write(mctx, id, out + written, sizeof(out) - written);
			assert(n > 0);
		}
		for (got = 0; got < sizeof(in); got += n) {
			n = mtcp_read(mctx, id, in + got, sizeof(in) - got);
			assert(n > 0);
		}
		assert(memcmp(in, out, sizeof(in)) == 0);
	}
	assert(mtcp_recv(mctx, id, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	assert(mtcp_close(mctx, id) == 0);

	to.sin_port = htons(atoi(argv[2]) + 1);
	id = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
	assert(mtcp_connect(mctx, id, (struct sockaddr *)&to, sizeof(to)) == -1);
	assert(errno == ECONNREFUSED);
	assert(mtcp_close(mctx, id) == 0);
	mtcp_destroy_context(mctx);
	mtcp_destroy();
	return 0;
}
