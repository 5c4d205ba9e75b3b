/* fdopen(3) of a socket: reads and writes of the C library's own. */
#include "transcript.h"

int main(void)
{
    for (int is_promoted = 0; is_promoted < 2; is_promoted++) {
        say("# %s", is_promoted ? "after some messages" : "at once");
        struct pair pair = is_promoted ? promoted() : connected();
        FILE *in = fdopen(pair.server, "r"), *out = fdopen(NEED(dup(pair.server)), "w");
        if (!in || !out)
            fail("fdopen");
        char line[64];
        for (int round = 0; round < 30; round++) {
            NEED(fprintf(out, "line %d\n", round));
            NEED(fflush(out));
            take_all(pair.client, line, round < 10 ? 7 : 8);
            send_all(pair.client, line, round < 10 ? 7 : 8);
            if (!fgets(line, sizeof line, in))
                fail("fgets");
            int number = -1;
            sscanf(line, "line %d", &number);
            if (number != round)
                say("%d came as %d", round, number);
        }
        say("thirty lines");
        SHOW(fclose(out));
        SHOW(fclose(in));
        SHOW(recv(pair.client, line, sizeof line, 0));
        SHOW(close(pair.client));
    }
    return 0;
}
