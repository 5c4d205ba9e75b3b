#include "test.h"

int main(void)
{
	CHECKS_ADDRESS(mp_getsockname, getsockname);
	return 0;
}
