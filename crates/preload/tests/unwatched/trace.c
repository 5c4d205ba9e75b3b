/* Writes to standard error which system calls a task makes from its marker getpgid(-7) to its marker getpgid(-8), and what they
 * come to: of each task by itself, in the order in which these began. Whether a task waits in futex(2) for another depends on which is first:
 * with a second task these calls are left out. usage: trace LIBRARY PROGRAM ARGUMENTS; LIBRARY - is none. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TASKS = 64, LINES = 1 << 16, REFUSED = 77 };

static struct task {
    pid_t id;
    int is_announced, is_waiting, is_logged, call, count;
    struct { int call, result; } *lines;
} tasks[TASKS];
static int known;

static struct task *task_of(pid_t id)
{
    for (int at = 0; at < known; at++)
        if (tasks[at].id == id)
            return &tasks[at];
    if (known == TASKS)
        exit(2);
    tasks[known] = (struct task){.id = id, .lines = calloc(LINES, sizeof *tasks->lines)};
    return &tasks[known++];
}

static void stopped_at_call(struct task *task)
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, task->id, sizeof info, &info) < 0)
        return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        task->call = info.entry.nr;
        int marker = info.entry.nr == SYS_getpgid ? (int)info.entry.args[0] : 0;
        if (marker == -7 || marker == -8)
            task->is_logged = marker == -7;
        else if (task->is_logged && (task->call == SYS_exit_group || task->call == SYS_exit) && task->count < LINES)
            task->lines[task->count].call = task->call, task->lines[task->count++].result = 0;
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT && task->is_logged && task->count < LINES &&
               (task->call != SYS_futex || known == 1)) {
        long result = info.exit.rval;
        task->lines[task->count].call = task->call;
        task->lines[task->count++].result = result < 0 && result > -4096 ? result : 0;
    }
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    pid_t first = fork();
    if (first == 0) {
        if (strcmp(arguments[1], "-"))
            setenv("LD_PRELOAD", arguments[1], 1);
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) < 0)
            _exit(REFUSED);
        raise(SIGSTOP);
        execv(arguments[2], arguments + 2);
        _exit(3);
    }
    int status, last = 0;
    if (waitpid(first, &status, 0) != first || !WIFSTOPPED(status))
        return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC |
                   PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, first, 0, options) < 0)
        return REFUSED;
    task_of(first)->is_announced = 1;
    ptrace(PTRACE_SYSCALL, first, 0, 0);
    for (pid_t id; (id = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (id == first)
                last = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        struct task *task = task_of(id);
        int signal = WSTOPSIG(status), event = status >> 16;
        unsigned long other = 0;
        if (signal == (SIGTRAP | 0x80)) {
            stopped_at_call(task);
            signal = 0;
        } else if (event == PTRACE_EVENT_EXEC) {
            /* Its own beginning comes first. */
            task->is_logged = 0;
            signal = 0;
        } else if (event) {
            ptrace(PTRACE_GETEVENTMSG, id, 0, &other);
            struct task *made = task_of(other);
            made->is_announced = 1;
            made->is_logged = task->is_logged;
            if (made->is_waiting)
                ptrace(PTRACE_SYSCALL, made->id, 0, 0);
            signal = 0;
        } else if (signal == SIGSTOP) {
            /* How a new task begins: it goes on once the event of its maker has said whether it is logged. */
            task->is_waiting = !task->is_announced;
            if (task->is_waiting)
                continue;
            signal = 0;
        }
        ptrace(PTRACE_SYSCALL, id, 0, signal);
    }
    for (int at = 0; at < known; at++)
        for (int line = 0; line < tasks[at].count; line++)
            fprintf(stderr, "task %d: call %d%s%s\n", at, tasks[at].lines[line].call, tasks[at].lines[line].result ? " " : "",
                    tasks[at].lines[line].result ? strerrorname_np(-tasks[at].lines[line].result) ?: "restarted" : "");
    fprintf(stderr, "status %d\n", last);
    return 0;
}
