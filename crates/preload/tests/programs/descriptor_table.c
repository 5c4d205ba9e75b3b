/* A promoted connection leaves the table of descriptors as large as it is: threads that share
 * it would wait for the kernel while it grows. The program may use every number in it. */
#include "transcript.h"

static int table_size(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    int size = -1;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "FDSize: %d", &size) == 1)
            break;
    if (status)
        fclose(status);
    return size;
}

int main(void)
{
    int before = table_size();
    struct pair pair = promoted();
    char bytes[16];
    SHOW(send(pair.client, "first", 5, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    SHOW(table_size() - before);
    for (int number = 60; number < 64; number++) {
        SHOW(dup2(pair.client, number));
        SHOW(send(number, "second", 6, 0));
        SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    }
    struct pair other = promoted();
    SHOW(send(other.client, "third", 5, 0));
    SHOW(recv(other.server, bytes, sizeof bytes, 0));
    for (int number = 60; number < 64; number++)
        SHOW(close(number));
    SHOW(close(62));
    return 0;
}
