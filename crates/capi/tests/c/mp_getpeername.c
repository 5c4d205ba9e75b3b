#include "test.h"

int main(void)
{
	CHECKS_ADDRESS(mp_getpeername, getpeername);
	return 0;
}
