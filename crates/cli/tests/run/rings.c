/* A connection to itself, in a process that has an io_uring of the form that its argument names, or none. The ring does
 * nothing. With "apart" the client is a process of its own, without a ring, and both take their time. Exit status 77: the
 * kernel has no such ring. */
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_MMAP = 1 << 14, REGISTER_FILES2 = 13, MANY = 14, MISSING = 77 };

static struct io_uring_params params;

/* As liburing does it. */
static long past_libc(long number, long a, long b)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
    return result;
#else
    register long name __asm__("x8") = number, first __asm__("x0") = a, second __asm__("x1") = b;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(name), "r"(second) : "memory");
    return first;
#endif
}

static long setup(unsigned flags)
{
    params.flags = flags;
    return syscall(SYS_io_uring_setup, 4, &params);
}

static long make(const char *form)
{
    if (!strcmp(form, "unseen"))
        return past_libc(SYS_io_uring_setup, 4, (long)&params);
    if (!strcmp(form, "polled"))
        return setup(IORING_SETUP_SQPOLL);
    if (!strcmp(form, "form")) {
        int protection = PROT_READ | PROT_WRITE, kind = MAP_ANONYMOUS | MAP_SHARED;
        uint64_t words = (uintptr_t)mmap(NULL, 4096, protection, kind, -1, 0);
        uint64_t entries = (uintptr_t)mmap(NULL, 4096, protection, kind, -1, 0);
        /* `user_addr` of both, which older headers do not name. */
        memcpy((char *)&params.cq_off + 32, &words, sizeof words);
        memcpy((char *)&params.sq_off + 32, &entries, sizeof entries);
        return setup(NO_MMAP);
    }
    if (!strcmp(form, "many")) {
        long ring = 0;
        for (int count = 0; count < MANY && ring >= 0; count++) {
            memset(&params, 0, sizeof params);
            ring = setup(0);
        }
        return ring;
    }
    if (!strcmp(form, "use")) {
        long ring = setup(0);
        syscall(SYS_io_uring_register, ring, REGISTER_FILES2, NULL, 0);
        return ring;
    }
    return !strcmp(form, "plain") ? setup(0) : 0;
}

#ifdef LIBRARY
/* What another library's ring is made by. */
long library_makes(void)
{
    return make("unseen");
}
#else
#ifdef WITH_LIBRARY
extern long library_makes(void);
#else
#define library_makes() (-1)
#endif

enum { TIMES = 600, PAUSE = 5000 };

static int asks(int socket)
{
    char byte = 1;
    for (int time = 0; time < TIMES; time++, usleep(PAUSE))
        if (send(socket, &byte, 1, 0) != 1 || recv(socket, &byte, 1, 0) != 1)
            return 1;
    return 0;
}

static int answers(int socket)
{
    char byte;
    for (int time = 0; time < TIMES; time++)
        if (recv(socket, &byte, 1, 0) != 1 || send(socket, &byte, 1, 0) != 1)
            return 1;
    return 0;
}

int main(int count, char **arguments)
{
    const char *form = count > 1 ? arguments[1] : "none";
    if ((strcmp(form, "library") ? make(form) : library_makes()) < 0)
        return MISSING;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    if (count > 3) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        at.sin_port = htons(atoi(arguments[3]));
        return connect(client, (struct sockaddr *)&at, sizeof at) || asks(client);
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&at, &length) < 0)
        return 1;
    if (count > 2) {
        char port[8];
        snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
        pid_t child = fork();
        if (!child)
            return execl(arguments[0], arguments[0], "none", "apart", port, NULL);
        close(client);
        int status = answers(accept(listener, NULL, NULL)), ended = 1;
        return waitpid(child, &ended, 0) < 0 || status || ended;
    }
    if (connect(client, (struct sockaddr *)&at, sizeof at) < 0)
        return 1;
    int server = accept(listener, NULL, NULL);
    for (int round = 0; round < 200; round++) {
        char byte = round, got;
        if (send(client, &byte, 1, 0) != 1 || recv(server, &got, 1, 0) != 1 || got != byte)
            return 1;
        if (send(server, &byte, 1, 0) != 1 || recv(client, &got, 1, 0) != 1 || got != byte)
            return 1;
    }
    return 0;
}
#endif
