/* MSG_WAITALL is cut short by a reset: the bytes are told first, and the error after them, once. What is sent to who
 * has sent FIN goes through the kernel. */
#include "transcript.h"

static struct pair pair;

static void *resets(void *unused)
{
    (void)unused;
    send_all(pair.client, "abc", 3);
    wait_for(pair.server, 0);
    pause_ms(50);
    struct linger at_once = {.l_onoff = 1};
    NEED(setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    NEED(close(pair.client));
    return NULL;
}

static void is_cut_short(bool by_kernel)
{
    char bytes[16] = {0};
    pthread_t thread;
    pair = promoted();
    if (by_kernel) {
        SHOW(shutdown(pair.server, SHUT_WR));
        SHOW(recv(pair.client, bytes, sizeof bytes, 0));
    }
    SHOW(send(pair.client, "first", 5, 0));
    SHOW(recv(pair.server, bytes, sizeof bytes, 0));
    pthread_create(&thread, NULL, resets, NULL);
    SHOW(recv(pair.server, bytes, 10, MSG_WAITALL));
    pthread_join(thread, NULL);
    SHOW(recv(pair.server, bytes, 10, 0));
    SHOW(recv(pair.server, bytes, 10, 0));
}

int main(void)
{
    is_cut_short(false);
    is_cut_short(true);
    return 0;
}
