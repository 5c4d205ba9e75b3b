#include "test.h"

int main(void)
{
	struct {
		struct mp_config config;
		char later[16];
	} newer;
	struct mp_config config;
	mp_channel *channel;

	EQUAL(mp_config_init(NULL, sizeof(config)), -EINVAL);
	EQUAL(mp_config_init(&config, sizeof(config.size)), -EINVAL);

	EQUAL(mp_config_init(&config, sizeof(config)), 0);
	EQUAL(config.size, sizeof(config));
	EQUAL(config.batch_threshold, 128);
	CHECK(config.read_buffers > 0 && config.buffer_size > 0 && config.close_timeout_ns > 0);
	EQUAL(config.reserved, 0);
	EQUAL(config.promotion, MP_PROMOTION_OFF);
	CHECK(config.ring_buffers > 0);
	config.promotion = 3;
	EQUAL(mp_create(&config, &channel), -EINVAL);
	config.promotion = MP_PROMOTION_OFF;
	channel = make_channel(&config);
	EQUAL(mp_destroy(channel), 0);

	/* A program newer than the library: what the library does not know stays 0. */
	memset(&newer, 0xff, sizeof(newer));
	EQUAL(mp_config_init(&newer.config, sizeof(newer)), 0);
	EQUAL(newer.config.size, sizeof(newer));
	for (size_t i = 0; i < sizeof(newer.later); i++)
		EQUAL(newer.later[i], 0);
	channel = make_channel(&newer.config);
	EQUAL(mp_destroy(channel), 0);
	newer.later[3] = 1;
	EQUAL(mp_create(&newer.config, &channel), -E2BIG);
	return 0;
}
