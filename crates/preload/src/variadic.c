/* The functions of variable arguments, which stable Rust cannot define: each becomes the one of its
 * kind that takes them in one piece, by the name that this library, or one before it, has. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);

/* The arguments of a program up to the null pointer, as `array` on the stack: a child of vfork(2)
 * may not allocate. `list` stands behind them, and is to be ended. */
#define GATHER(first, list, array)                                  \
    va_list list, counted;                                          \
    va_start(list, first);                                          \
    va_copy(counted, list);                                         \
    size_t count = 2;                                               \
    while (first && va_arg(counted, char *))                        \
        count++;                                                    \
    va_end(counted);                                                \
    char *array[count];                                             \
    array[0] = (char *)first;                                       \
    for (size_t place = 1; array[place - 1]; place++)               \
        array[place] = va_arg(list, char *)

int megapipe_execl(const char *path, const char *argument, ...)
{
    GATHER(argument, list, array);
    va_end(list);
    return execv(path, array);
}

int megapipe_execlp(const char *file, const char *argument, ...)
{
    GATHER(argument, list, array);
    va_end(list);
    return execvp(file, array);
}

int megapipe_execle(const char *path, const char *argument, ...)
{
    GATHER(argument, list, array);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, array, environment);
}

int megapipe_dprintf(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int count = vdprintf(fd, format, arguments);
    va_end(arguments);
    return count;
}

int megapipe_dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int count = __vdprintf_chk(fd, flag, format, arguments);
    va_end(arguments);
    return count;
}
