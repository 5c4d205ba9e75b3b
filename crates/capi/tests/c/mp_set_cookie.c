#include "test.h"

int main(void)
{
	mp_channel *channel = make_channel(NULL);
	int first, second, peer;
	mp_handle handle = tcp_handle(channel, &first, &peer);

	REFUSES_STRANGE(mp_set_cookie(handle, NULL));
	CHECK(mp_write(handle, "1", 1) > 0);
	CHECK(next_event(channel).cookie == &first);
	/* Also for what was queued before. */
	CHECK(mp_write(handle, "2", 1) > 0);
	EQUAL(mp_set_cookie(handle, &second), 0);
	CHECK(next_event(channel).cookie == &second);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
