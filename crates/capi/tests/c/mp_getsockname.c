#include "test.h"

int main(void)
{
	checks_address(mp_getsockname, getsockname);
	return 0;
}
