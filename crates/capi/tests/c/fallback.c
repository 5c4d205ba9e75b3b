#include "test.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* What containers do: io_uring_setup(2) says EPERM. */
static void forbid_io_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		SKIP("this kernel takes no seccomp filter");
}

/* Where io_uring is forbidden the channel uses epoll, and says so in one line. */
int main(void)
{
	struct mp_config config = {.size = sizeof(config), .engine = MP_ENGINE_URING};
	mp_channel *first, *second, *none;
	char said[1024] = "";
	int ends[2], console = dup(2);
	ssize_t count;

	unsetenv("MEGAPIPE_ENGINE");
	unsetenv("MEGAPIPE_LOG");
	forbid_io_uring();
	EQUAL(mp_create(&config, &none), -EOPNOTSUPP);
	EQUAL(pipe(ends), 0);
	CHECK(dup2(ends[1], 2) == 2);
	first = make_channel(NULL);
	second = make_channel(NULL);
	CHECK(dup2(console, 2) == 2);
	close(ends[1]);
	EQUAL(strcmp(mp_engine_name(first), "epoll"), 0);
	EQUAL(strcmp(mp_engine_name(second), "epoll"), 0);
	count = read(ends[0], said, sizeof(said) - 1);
	CHECK(count > 0 && strstr(said, "epoll") != NULL);
	EQUAL(strchr(said, '\n') - said, count - 1);
	EQUAL(mp_destroy(first), 0);
	EQUAL(mp_destroy(second), 0);
	return 0;
}
