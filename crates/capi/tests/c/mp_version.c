#include "test.h"

int main(void)
{
	EQUAL(strcmp(mp_version(), MP_VERSION), 0);
	return 0;
}
