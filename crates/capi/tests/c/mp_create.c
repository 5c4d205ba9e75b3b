#include "test.h"

int main(void)
{
	struct mp_config config = {.size = sizeof(config)};
	mp_channel *first = NULL, *second = NULL, *none = NULL;
	char said[1024] = "";
	int ends[2], console = dup(2);

	unsetenv("MEGAPIPE_LOG");
	EQUAL(mp_create(NULL, NULL), -EINVAL);
	EQUAL(mp_create(NULL, &first), 0);
	EQUAL(mp_create(&config, &second), 0);
	CHECK(first != NULL && second != NULL && first != second);
	EQUAL(mp_destroy(first), 0);
	EQUAL(mp_destroy(second), 0);

	config.size = sizeof(config.size);
	EQUAL(mp_create(&config, &none), -EINVAL);
	config.size = sizeof(config);
	config.read_buffers = 3;
	EQUAL(mp_create(&config, &none), -EINVAL);
	config.read_buffers = 0;
	config.engine = 9;
	EQUAL(mp_create(&config, &none), -EINVAL);
	config.engine = 0;
	config.handles_max = (1 << 20) + 1;
	EQUAL(mp_create(&config, &none), -EINVAL);
	config.handles_max = 0;
	config.spin = MP_SPIN_FOR;
	config.spin_ns = -1;
	EQUAL(mp_create(&config, &none), -EINVAL);
	CHECK(none == NULL);

	/* A number alone would not say which setting it is. */
	setenv("MEGAPIPE_ENGINE", "kqueue", 1);
	EQUAL(pipe(ends), 0);
	CHECK(dup2(ends[1], 2) == 2);
	EQUAL(mp_create(NULL, &none), -EINVAL);
	CHECK(dup2(console, 2) == 2);
	close(ends[1]);
	CHECK(read(ends[0], said, sizeof(said) - 1) > 0);
	CHECK(strstr(said, "MEGAPIPE_ENGINE is `kqueue`; set it to `uring` or `epoll`, or unset it\n") != NULL);
	return 0;
}
