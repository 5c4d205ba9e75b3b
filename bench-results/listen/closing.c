/* Connections that a listener loses as it closes, with net.ipv4.tcp_migrate_req at 1.
 *
 * One of two listeners of an SO_REUSEPORT group closes and listens again without end, on the first
 * CPU; clients connect on the CPU of the argument. Usage, as root: unshare -n ./closing CPU SECONDS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 6, BACKLOG = 4096 };

static struct sockaddr_in address;
static atomic_long answered, reset, failed;
static atomic_int over;
static int clients_cpu;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        exit(1);
}

static int bound(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address))
        exit(1);
    return fd;
}

/* The other listener, to which connections move. */
static void *serve(void *listener) {
    pin(0);
    while (!over) {
        struct pollfd waits = {*(int *)listener, POLLIN, 0};
        int fd;
        poll(&waits, 1, 20);
        while ((fd = accept(waits.fd, NULL, NULL)) >= 0) {
            send(fd, "x", 1, MSG_NOSIGNAL);
            close(fd);
        }
    }
    return NULL;
}

static void *connects(void *unused) {
    pin(clients_cpu);
    while (!over) {
        char byte;
        struct linger resets = {1, 0};
        struct timeval limit = {5, 0};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, (void *)&address, sizeof address) == 0 && recv(fd, &byte, 1, 0) == 1)
            answered++;
        else if (errno == ECONNRESET)
            reset++;
        else
            failed++;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &resets, sizeof resets);
        close(fd);
    }
    return unused;
}

int main(int count, char **arguments) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int setting = open("/proc/sys/net/ipv4/tcp_migrate_req", O_WRONLY);
    pthread_t server, clients[CLIENTS];
    long closes = 0;
    if (count != 3 || ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &loopback) || write(setting, "1", 1) != 1)
        return 1;
    clients_cpu = atoi(arguments[1]);
    address = (struct sockaddr_in){AF_INET, htons(7777), {htonl(INADDR_LOOPBACK)}, {0}};
    int stays = bound();
    listen(stays, BACKLOG);
    pthread_create(&server, NULL, serve, &stays);
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&clients[i], NULL, connects, NULL);
    pin(0);
    int comes_and_goes = bound();
    for (time_t end = time(NULL) + atoi(arguments[2]); time(NULL) < end; closes++) {
        listen(comes_and_goes, BACKLOG);
        usleep(300 + rand() % 200);
        shutdown(comes_and_goes, SHUT_RDWR);
    }
    over = 1;
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    printf("clients on CPU %d: %ld closes, %ld connections answered, %ld reset, %ld failed otherwise\n", clients_cpu,
           closes, answered, reset, failed);
    return 0;
}
