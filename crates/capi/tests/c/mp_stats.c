#include "test.h"

int main(void)
{
	struct {
		struct mp_stats stats;
		uint64_t later;
	} newer;
	mp_channel *channel = make_channel(NULL);
	struct mp_stats stats;
	int peer;
	mp_handle handle = tcp_handle(channel, NULL, &peer);

	EQUAL(mp_stats(NULL, &stats, sizeof(stats)), -EINVAL);
	EQUAL(mp_stats(channel, NULL, sizeof(stats)), -EINVAL);
	EQUAL(mp_stats(channel, &stats, sizeof(stats)), 0);
	EQUAL(stats.completions, 0);

	CHECK(mp_write(handle, "x", 1) > 0);
	EQUAL(next_event(channel).cmd, MP_WRITE);
	memset(&newer, 0xff, sizeof(newer));
	EQUAL(mp_stats(channel, &newer.stats, sizeof(newer)), 0);
	EQUAL(newer.stats.completions, 1);
	CHECK(newer.stats.turns > 0 && newer.stats.system_calls > 0);
	EQUAL(newer.later, 0);
	/* There is no stack. */
	EQUAL(newer.stats.packets_received + newer.stats.foreign_dropped, 0);

	/* A program older than the library: no byte beyond its struct is touched. */
	memset(&stats, 0xff, sizeof(stats));
	EQUAL(mp_stats(channel, &stats, sizeof(stats.completions)), 0);
	EQUAL(stats.completions, 1);
	CHECK(stats.turns == UINT64_MAX);
	EQUAL(mp_destroy(channel), 0);
	return 0;
}
