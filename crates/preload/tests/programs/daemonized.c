/* daemon(3): the process that goes on is another one, with the connection of the first. */
#include "transcript.h"

int main(void)
{
    struct pair pair = promoted();
    int done[2];
    NEED(pipe(done));
    pid_t child = NEED(fork());
    if (child == 0) {
        close(done[0]);
        char bytes[16] = {0};
        if (daemon(1, 1) < 0)
            _exit(7);
        echo_all(pair.server, 5, 4);
        /* What it opens from here on is followed like anything else. */
        struct pair own = promoted();
        send_all(own.client, "own", 3);
        take_all(own.server, bytes, 3);
        close(own.client);
        close(own.server);
        int file = NEED(open("/dev/zero", O_RDONLY));
        if (read(file, bytes, 4) != 4 || bytes[0])
            _exit(8);
        send_all(pair.server, "done", 4);
        if (daemon(0, 0) < 0)
            _exit(7);
        struct stat status;
        bool null = !fstat(STDOUT_FILENO, &status) && S_ISCHR(status.st_mode);
        char place[8] = "";
        NEED(getcwd(place, sizeof place) ? 0 : -1);
        if (write(done[1], null && !strcmp(place, "/") ? "y" : "n", 1) != 1)
            _exit(9);
        _exit(0);
    }
    close(done[1]);
    close(pair.server);
    status_of(child);
    char bytes[16] = {0};
    for (int round = 0; round < 5; round++) {
        SHOW(send(pair.client, "ping", 4, 0));
        SHOW(recv(pair.client, bytes, 4, MSG_WAITALL));
        show_bytes("recv", bytes, 4);
    }
    SHOW(recv(pair.client, bytes, 4, MSG_WAITALL));
    show_bytes("recv", bytes, 4);
    SHOW(read(done[0], bytes, 1));
    show_bytes("at the root, with no terminal", bytes, 1);
    SHOW(recv(pair.client, bytes, 4, 0));
    return 0;
}
