#include "lowat.h"

/* A child has no set of the parent's, and makes its own; the parent's mark stays. */
static void child(mp_lowat *lowat, int fd)
{
	mp_lowat *own;

	alarm(20);
	EQUAL(mp_lowat_rearm(lowat, fd), -EBADF);
	EQUAL(mp_lowat_destroy(lowat), -EBADF);
	EQUAL(mark_of(fd), MARK);
	own = make_lowat(MP_LOWAT_THREAD);
	EQUAL(mp_lowat_fd(lowat), -EBADF);
	EQUAL(mp_lowat_destroy(own), 0);
	exit(0);
}

int main(void)
{
	mp_lowat *lowat = make_lowat(MP_LOWAT_THREAD);
	int ends[2], status;
	pid_t pid;

	tcp_pair(ends);
	EQUAL(mp_lowat_set(lowat, ends[0], MARK, SECOND), 0);
	EQUAL(mark_of(ends[0]), MARK);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		child(lowat, ends[0]);
	EQUAL(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EQUAL(mp_lowat_destroy(lowat), 0);
	EQUAL(mark_of(ends[0]), 1);
	EQUAL(mp_lowat_destroy(lowat), -EBADF);
	EQUAL(mp_lowat_destroy(NULL), -EBADF);
	return 0;
}
