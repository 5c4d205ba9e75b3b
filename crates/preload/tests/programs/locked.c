/* mlockall(2), as programs call it that must not be paged out: what the library reserves and does not use
 * is not locked. */
#include "transcript.h"

#include <sys/mman.h>
#include <sys/resource.h>

static long locked(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kilobytes = -1;
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "VmLck:", 6))
            kilobytes = strtol(line + 6, NULL, 10);
    fclose(status);
    return kilobytes;
}

int main(int count, char **arguments)
{
    (void)count;
    /* The table of descriptors is as large as the hard limit says. */
    struct rlimit limit = {1024, 1024};
    struct rlimit before;
    NEED(getrlimit(RLIMIT_NOFILE, &before));
    if (before.rlim_max > limit.rlim_max) {
        NEED(setrlimit(RLIMIT_NOFILE, &limit));
        NEED(execv("/proc/self/exe", arguments));
    }
    NEED(mlockall(MCL_CURRENT));
    long first = locked();
    say("less than 12 MiB: %d", first > 0 && first < 12 << 10);
    NEED(mlockall(MCL_CURRENT | MCL_FUTURE));
    struct pair pair = promoted();
    SHOW(send(pair.client, "abc", 3, 0));
    char bytes[4];
    SHOW(recv(pair.server, bytes, 3, MSG_WAITALL));
    say("4 MiB more at most: %d", locked() - first <= 4 << 10);
    return 0;
}
