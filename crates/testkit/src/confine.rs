//! Starting a program with less than the system has: without some system calls, with little lockable memory or few
//! descriptors.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const IO_URING_CALLS: [i64; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The program gets EPERM from every io_uring call, as in containers with the usual profile.
pub fn without_io_uring(command: &mut Command) -> &mut Command {
    without(command, &IO_URING_CALLS)
}

/// The program gets EPERM from bpf(2), as without CAP_BPF.
pub fn without_bpf(command: &mut Command) -> &mut Command {
    without(command, &[libc::SYS_bpf])
}

/// EPERM from `epoll_create1` too.
pub fn without_io_uring_and_epoll(command: &mut Command) -> &mut Command {
    without(command, &[&IO_URING_CALLS[..], &[libc::SYS_epoll_create1]].concat())
}

/// RLIMIT_MEMLOCK of so many bytes.
pub fn with_locked_memory(command: &mut Command, bytes: u64) -> &mut Command {
    with_limit(command, libc::RLIMIT_MEMLOCK, bytes)
}

/// RLIMIT_NOFILE of so many descriptors, none of them taken by what this process itself has inherited.
pub fn with_open_files(command: &mut Command, descriptors: u64) -> &mut Command {
    // SAFETY: between fork and exec only close_range is called, which is async-signal-safe and here closes nothing
    // before exec.
    unsafe {
        command.pre_exec(|| {
            match libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    with_limit(command, libc::RLIMIT_NOFILE, descriptors)
}

/// A soft and hard limit of the kernel on a resource (setrlimit(2)).
pub fn with_limit(command: &mut Command, resource: libc::__rlimit_resource_t, value: u64) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: between fork and exec only setrlimit is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &limit) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    }
}

/// Installs a seccomp filter before exec (seccomp(2)): these calls fail with EPERM, all others pass.
fn without<'a>(command: &'a mut Command, calls: &[i64]) -> &'a mut Command {
    let mut program = filter(calls);
    // SAFETY: between fork and exec only prctl is called, on memory that the closure owns.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            let installed = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0;
            if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }
}

/// Classic BPF over `struct seccomp_data`, whose first word is the number of the call.
fn filter(calls: &[i64]) -> Vec<libc::sock_filter> {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &call in calls {
        program.push(libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
        });
        program.push(statement(libc::BPF_RET | libc::BPF_K, refuse));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}
