/* Programs that were compiled with older or newer headers than the library's: a struct may end after any field since
 * the first version. Each lies before memory that cannot be touched, so that a byte too many is noticed. */
#include "receiver.h"

#define END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define PAGE 4096

/* The last `size` bytes before a page without access. */
static char *before_the_wall(size_t size)
{
	static char *wall;

	if (wall == NULL) {
		char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHECK(pages != MAP_FAILED);
		wall = pages + PAGE;
		EQUAL(mprotect(wall, PAGE, PROT_NONE), 0);
	}
	return wall - size;
}

/* What `full` says in its first `size` bytes, and nothing behind. */
static void *cut(const void *full, size_t size)
{
	char *at = before_the_wall(size);

	memcpy(at, full, size);
	memcpy(at, &size, sizeof(size));
	return at;
}

static int create(const void *config)
{
	mp_channel *channel;
	int status = mp_create(config, &channel);

	if (status == 0)
		EQUAL(mp_destroy(channel), 0);
	return status;
}

static int create_receiver(const void *config)
{
	mp_receiver *receiver;
	int status = mp_receiver_create(config, &receiver);

	if (status == 0)
		EQUAL(mp_receiver_destroy(receiver), 0);
	return status;
}

/* Every size that a struct has had or has in between, and what is no such size. */
static void sizes(int (*make)(const void *), const void *full, size_t first, size_t now)
{
	/* Each byte, so that fields of later versions are covered; all settings are 0. */
	for (size_t size = first; size <= now; size++)
		EQUAL(make(cut(full, size)), 0);
	EQUAL(make(cut(full, first - 1)), -EINVAL);
	EQUAL(make(cut(full, sizeof(size_t))), -EINVAL);
	/* A size that was never initialised. */
	for (size_t bits = 13; bits < 64; bits++) {
		char wild[256] = {0};

		memcpy(wild, &(size_t){(size_t)1 << bits}, sizeof(size_t));
		EQUAL(make(wild), -E2BIG);
	}
	for (size_t more = 1; more <= 64; more++) {
		char newer[256] = {0};

		memcpy(newer, full, now);
		EQUAL(make(cut(newer, now + more)), 0);
		newer[now + more - 1] = 1;
		EQUAL(make(cut(newer, now + more)), -E2BIG);
	}
}

int main(void)
{
	const size_t first = END(struct mp_config, latency_delay_ns), now = sizeof(struct mp_config);
	struct mp_config config = {.size = now};
	struct mp_receiver_config receiver = {.size = sizeof(receiver)};

	sizes(create, &config, first, now);
	sizes(create_receiver, &receiver, END(struct mp_receiver_config, flags), sizeof(receiver));

	/* What an older program has is heeded, and nothing else. */
	for (size_t size = first; size <= now; size++) {
		memset(&config, 0, sizeof(config));
		memset((char *)&config + size, 0xff, now - size);
		EQUAL(create(cut(&config, size)), 0);
		config.engine = 9;
		EQUAL(create(cut(&config, size)), -EINVAL);
	}
	for (size_t size = first; size <= now + 64; size++) {
		char *filled = before_the_wall(size);

		memset(filled - 8, 0xee, size + 8);
		EQUAL(mp_config_init((struct mp_config *)filled, size), 0);
		EQUAL(filled[-1], (char)0xee);
		EQUAL(((struct mp_config *)filled)->size, size);
		EQUAL(((struct mp_config *)filled)->batch_threshold, 128);
		for (size_t at = now; at < size; at++)
			EQUAL(filled[at], 0);
		if (size <= now)
			EQUAL(create(filled), 0);
	}
	EQUAL(mp_config_init((struct mp_config *)before_the_wall(first - 1), first - 1), -EINVAL);
	return 0;
}
