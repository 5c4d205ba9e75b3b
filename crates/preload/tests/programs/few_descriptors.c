/* Where fewer than 64 descriptors are allowed, the lowest free numbers are still the program's. */
#include "transcript.h"
#include <sys/resource.h>

int main(void)
{
    struct rlimit limit = {40, 40};
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    used(promoted());
    for (int round = 0; round < 6; round++)
        SHOW(dup(STDIN_FILENO));
    SHOW(fcntl(STDIN_FILENO, F_DUPFD, 30));
    return 0;
}
