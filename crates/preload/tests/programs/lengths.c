/* Lengths that no buffer has, alone and in vectors: what the kernel refuses moves no byte. */
#include "transcript.h"
#include <limits.h>
#include <sys/mman.h>

static const struct { const char *name; size_t length; } lengths[] = {
    {"INT_MAX", 0x7fffffff},
    {"MAX_RW_COUNT + 1", 0x7ffff001},
    {"UINT_MAX", 0xffffffff},
    {"2^40", (size_t)1 << 40},
    {"2^46", (size_t)1 << 46},
    {"2^47", (size_t)1 << 47},
    {"2^56", (size_t)1 << 56},
    {"2^60", (size_t)1 << 60},
    {"SSIZE_MAX", SSIZE_MAX},
    {"SSIZE_MAX + 1", (size_t)SSIZE_MAX + 1},
    {"-4096", (size_t)-4096},
    {"-1", (size_t)-1},
};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

enum { WRITE, SEND, SENDTO, WRITEV, WRITEV_LAST, WRITEV_FIRST, SENDMSG, SENDMSG_LAST, PWRITEV2, SENDMMSG,
       FIRST_READ, READ = FIRST_READ, RECV, RECVFROM, READV, READV_LAST, READV_FIRST, RECVMSG, RECVMSG_LAST, PREADV2, RECVMMSG,
       CALLS };
static const char *const calls[] = {
    "write", "send", "sendto", "writev", "writev, last", "writev, first", "sendmsg", "sendmsg, last", "pwritev2",
    "sendmmsg", "read", "recv", "recvfrom", "readv", "readv, last", "readv, first", "recvmsg", "recvmsg, last",
    "preadv2", "recvmmsg"};

static ssize_t make(int call, int fd, char *memory, size_t length)
{
    struct iovec one = {memory, length}, last[] = {{memory, 4}, {memory + 4, length}},
                 first[] = {{memory, length}, {memory + 4, 4}};
    struct msghdr head = {.msg_iov = &one, .msg_iovlen = 1}, two = {.msg_iov = last, .msg_iovlen = 2};
    struct mmsghdr many = {.msg_hdr = head};
    switch (call) {
    case WRITE: return write(fd, memory, length);
    case SEND: return send(fd, memory, length, 0);
    case SENDTO: return sendto(fd, memory, length, 0, NULL, 0);
    case WRITEV: return writev(fd, &one, 1);
    case WRITEV_LAST: return writev(fd, last, 2);
    case WRITEV_FIRST: return writev(fd, first, 2);
    case SENDMSG: return sendmsg(fd, &head, 0);
    case SENDMSG_LAST: return sendmsg(fd, &two, 0);
    case PWRITEV2: return pwritev2(fd, &one, 1, -1, 0);
    case SENDMMSG: return sendmmsg(fd, &many, 1, 0);
    case READ: return read(fd, memory, length);
    case RECV: return recv(fd, memory, length, 0);
    case RECVFROM: return recvfrom(fd, memory, length, 0, NULL, NULL);
    case READV: return readv(fd, &one, 1);
    case READV_LAST: return readv(fd, last, 2);
    case READV_FIRST: return readv(fd, first, 2);
    case RECVMSG: return recvmsg(fd, &head, 0);
    case RECVMSG_LAST: return recvmsg(fd, &two, 0);
    case PREADV2: return preadv2(fd, &one, 1, -1, 0);
    default: return recvmmsg(fd, &many, 1, 0, NULL);
    }
}

/* Drops what is there; whether that is anything. */
static bool drained(int fd)
{
    static char room[1 << 20];
    bool any = false;
    for (int quiet = 0; quiet < 2;) {
        if (recv(fd, room, sizeof room, MSG_DONTWAIT) > 0)
            any = true, quiet = 0;
        else
            quiet++, usleep(500);
    }
    return any;
}

int main(void)
{
    struct pair pair = promoted();
    nonblocking(pair.client);
    nonblocking(pair.server);
    enum { HEAP = 1 << 20 };
    /* In each run at one place: how far it is from the last address decides which lengths pass that. */
    void *where = (void *)((uintptr_t)1 << 44);
    char *memory = mmap(where, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    memset(memory, 'h', HEAP);
    /* Beside its end, so that a length runs over it, and beyond the addresses. */
    char *const places[] = {memory + HEAP - 8, (char *)-4096, (char *)((uintptr_t)1 << 47)};
    for (int call = 0; call < CALLS; call++)
        for (int place = 0; place < 3; place++)
            for (int length = 0; length < LENGTHS; length++) {
                bool sends = call < FIRST_READ;
                if (!sends) {
                    send_all(pair.client, "abcd", 4);
                    wait_for(pair.server, 4);
                }
                errno = 0;
                ssize_t result = make(call, sends ? pair.client : pair.server, places[place], lengths[length].length);
                int error = errno;
                /* How much of readable memory goes before the fault depends on room. */
                say("%s at %d of %s: %s %s, %s there", calls[call], place, lengths[length].name,
                    result < 0 ? "fails" : "moves some", strerrorname_np(error),
                    drained(pair.server) ? "bytes" : "nothing");
            }
    used(pair);
    return 0;
}
