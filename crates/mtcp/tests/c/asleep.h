#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Returns once the thread has been found asleep twenty times in a row. */
static void until_asleep(pid_t thread)
{
	char path[64], text[512];

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
	for (int asleep = 0; asleep < 20; usleep(1000)) {
		FILE *stat = fopen(path, "r");

		assert(stat && fgets(text, sizeof(text), stat));
		fclose(stat);
		asleep = strstr(text, ") S ") ? asleep + 1 : 0;
	}
}
