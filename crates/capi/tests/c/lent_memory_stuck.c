#include "test.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>

/* A page that is missing until userfaultfd(2) gets it. A read into it is one that the kernel neither
 * ends nor cancels, as of a file whose server hangs. */
static char *missing_page(int *faults, long size)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	char *page;

	*faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (*faults < 0 || ioctl(*faults, UFFDIO_API, &api) < 0)
		SKIP("userfaultfd is not allowed here");
	page = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	range.range.start = (uintptr_t)page;
	range.range.len = (uint64_t)size;
	EQUAL(ioctl(*faults, UFFDIO_REGISTER, &range), 0);
	return page;
}

int main(void)
{
	long size = sysconf(_SC_PAGESIZE);
	mp_channel *channel = make_channel(NULL);
	struct uffdio_zeropage zeroes = {0};
	struct pollfd awaited = {.events = POLLIN};
	struct mp_event event;
	char *page;
	int faults, file;
	mp_handle handle;
	time_t start;

	if (strcmp(mp_engine_name(channel), "epoll") == 0)
		SKIP("this engine reads files within the call that queues the read");
	page = missing_page(&faults, size);
	/* Of those files a worker of the ring reads, so that the channel itself does not hang. */
	file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	CHECK(file >= 0);
	handle = mp_register(channel, file, NULL, NULL, 0);
	CHECK(handle > 0);
	CHECK(mp_read_at(handle, page, 16, 0) > 0);
	EQUAL(mp_flush(channel), 0);
	awaited.fd = faults;
	EQUAL(poll(&awaited, 1, 30000), 1);

	/* No call waits for it for long, and none takes the memory from under it. */
	start = time(NULL);
	for (int again = 0; again < 2; again++) {
		EQUAL(mp_close(handle), -ETIMEDOUT);
		EQUAL(mp_unregister(handle), -ETIMEDOUT);
		EQUAL(mp_destroy(channel), -ETIMEDOUT);
	}
	CHECK(time(NULL) - start < 20);

	zeroes.range.start = (uintptr_t)page;
	zeroes.range.len = (uint64_t)size;
	EQUAL(ioctl(faults, UFFDIO_ZEROPAGE, &zeroes), 0);
	event = next_event(channel);
	EQUAL(event.cmd, MP_READ);
	EQUAL(event.handle, handle);
	EQUAL(mp_close(handle), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
