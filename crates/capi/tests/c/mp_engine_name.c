#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	const char *forced = getenv("MEGAPIPE_ENGINE");
	const char *name = mp_engine_name(channel);

	CHECK(name != NULL);
	CHECK(strcmp(name, "uring") == 0 || strcmp(name, "epoll") == 0);
	if (forced != NULL && *forced != '\0')
		EQUAL(strcmp(name, forced), 0);
	CHECK(mp_engine_name(NULL) == NULL);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
