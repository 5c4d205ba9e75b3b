#include "test.h"
#include <sys/resource.h>

/* Without room for a ring in RLIMIT_MEMLOCK, which CAP_IPC_LOCK would lift, the error is ENOMEM. */
int main(void)
{
	struct mp_config config = {.size = sizeof(config), .engine = MP_ENGINE_URING};
	struct rlimit nothing = {0, 0};
	mp_channel *channel;
	int status;

	unsetenv("MEGAPIPE_ENGINE");
	EQUAL(setrlimit(RLIMIT_MEMLOCK, &nothing), 0);
	if (geteuid() == 0)
		EQUAL(setresuid(64323, 64323, 64323), 0);
	status = mp_create(&config, &channel);
	if (status == 0)
		SKIP("this kernel does not count rings against RLIMIT_MEMLOCK");
	if (status == -EOPNOTSUPP)
		SKIP("the kernel does not allow this engine");
	EQUAL(status, -ENOMEM);
	config.engine = MP_ENGINE_EPOLL;
	EQUAL(mp_create(&config, &channel), 0);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
