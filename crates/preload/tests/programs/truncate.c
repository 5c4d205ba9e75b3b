/* MSG_TRUNC drops stream bytes (tcp(7)). */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    char bytes[16];
    memset(bytes, '-', sizeof bytes);
    SHOW(send(pair.client, "0123456789", 10, 0));
    wait_for(pair.server, 10);
    SHOW(recv(pair.server, bytes, 4, MSG_TRUNC));
    show_bytes("untouched", bytes, 4);
    SHOW(recv(pair.server, NULL, 3, MSG_TRUNC));
    SHOW(recv(pair.server, NULL, 100, MSG_TRUNC | MSG_PEEK));
    SHOW(recv(pair.server, bytes, 2, 0));
    show_bytes("recv", bytes, 2);
    SHOW(recv(pair.server, NULL, 100, MSG_TRUNC));
    SHOW(recv(pair.server, NULL, 100, MSG_TRUNC | MSG_DONTWAIT));
    SHOW(send(pair.client, "abcdef", 6, 0));
    wait_for(pair.server, 6);
    SHOW(recv(pair.server, NULL, 6, MSG_TRUNC | MSG_WAITALL));
    SHOW(close(pair.client));
    SHOW(recv(pair.server, NULL, 100, MSG_TRUNC));
    return 0;
}
