/* A program that takes the last numbers that it may have leaves none for the library: its connections stay on TCP, and work.
 * path: tcp */
#include "transcript.h"
#include <sys/resource.h>

enum { FILES = 64 };

int main(void)
{
    struct rlimit limit = {FILES, FILES};
    NEED(setrlimit(RLIMIT_NOFILE, &limit));
    SHOW(dup2(STDIN_FILENO, FILES - 1));
    SHOW(dup2(STDIN_FILENO, FILES - 2));
    struct pair pair = connected();
    for (int round = 0; round < 100; round++)
        ping(pair);
    used(pair);
    SHOW(close(FILES - 1));
    SHOW(close(FILES - 2));
    return 0;
}
