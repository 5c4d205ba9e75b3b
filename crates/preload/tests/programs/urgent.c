/* MSG_OOB and SO_OOBINLINE. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[64] = {0};
    SHOW(recv(pair.server, bytes, 1, MSG_OOB));
    SHOW(send(pair.client, "before", 6, 0));
    SHOW(send(pair.client, "!", 1, MSG_OOB));
    SHOW(send(pair.client, "after", 5, 0));
    show_poll("urgent", pair.server, POLLPRI, -1);
    wait_for(pair.server, 0);
    pause_ms(20);
    SHOW(recv(pair.server, bytes, 1, MSG_OOB));
    show_bytes("urgent", bytes, 1);
    SHOW(recv(pair.server, bytes, 6, 0));
    show_bytes("before", bytes, 6);
    SHOW(recv(pair.server, bytes, 5, 0));
    show_bytes("after", bytes, 5);
    SHOW(recv(pair.server, bytes, 1, MSG_DONTWAIT));
    SHOW(recv(pair.server, bytes, 1, MSG_OOB));
    for (int round = 0; round < 3; round++) {
        SHOW(send(pair.server, "answer", 6, 0));
        SHOW(recv(pair.client, bytes, 6, 0));
        SHOW(send(pair.client, "more", 4, 0));
        SHOW(recv(pair.server, bytes, 4, 0));
    }
    return 0;
}
