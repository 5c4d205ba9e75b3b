#include "test.h"

int main(void)
{
	checks_address(mp_getpeername, getpeername);
	return 0;
}
