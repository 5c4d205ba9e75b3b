/* Calls GetNumCPUs, and brings one of its own if OWN is 1. */
#include <assert.h>
#include <mtcp_api.h>
#include <unistd.h>

int GetNumCPUs(void);

#if OWN
int GetNumCPUs(void)
{
	return 4711;
}
#endif

int main(void)
{
	struct mtcp_conf conf;

	assert(mtcp_getconf(&conf) == 0);
	assert(OWN ? GetNumCPUs() == 4711 : GetNumCPUs() >= 1);
	return 0;
}
