#include "lowat.h"

int main(void)
{
	mp_lowat *lowat;

	EQUAL(mp_lowat_create(0, NULL), -EINVAL);
	EQUAL(mp_lowat_create(1u << 31, &lowat), -EINVAL);
	EQUAL(mp_lowat_destroy(make_lowat(0)), 0);
	EQUAL(mp_lowat_destroy(make_lowat(MP_LOWAT_THREAD)), 0);
	return 0;
}
