//! System calls of a program, counted by ptrace(2), which takes no privileges.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use crate::skip::Skipped;

/// In a traced program: counting begins, or ends.
pub fn mark() {
    // SAFETY: a number alone; there is no such process group.
    unsafe { libc::syscall(libc::SYS_getpgid, MARK) };
}

/// Runs a program to its end; the calls of all its threads between two [`mark`]s, by number.
pub fn between_marks(command: &mut Command) -> Result<BTreeMap<u64, usize>, Skipped> {
    // SAFETY: between fork and exec only ptrace is called, with numbers.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let started = command.spawn();
    let started = started.map_err(|error| Skipped::because(format!("no process can be traced: {error}")));
    let main = started?.id() as libc::pid_t;
    assert_eq!(wait(main), (main, Stop::Signal(libc::SIGTRAP)), "it stops at its exec");
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SETOPTIONS, main, options);
    request(libc::PTRACE_SYSCALL, main, 0);
    let mut calls = BTreeMap::new();
    let mut marks = 0;
    loop {
        let (thread, stop) = wait(-1);
        let signal = match stop {
            Stop::End(status) if thread == main => {
                assert_eq!((status, marks), (0, 2), "how it ended, and its marks");
                return Ok(calls);
            }
            Stop::End(_) => continue,
            Stop::Call => {
                match entered(thread) {
                    Some((nr, argument)) if nr as i64 == libc::SYS_getpgid && argument == MARK => marks += 1,
                    Some((nr, _)) if marks == 1 => *calls.entry(nr).or_default() += 1,
                    _ => {}
                }
                0
            }
            // Of a thread that begins, and of the one that made it.
            Stop::Signal(libc::SIGSTOP | libc::SIGTRAP) => 0,
            Stop::Signal(signal) => signal,
        };
        request(libc::PTRACE_SYSCALL, thread, signal);
    }
}

const MARK: u64 = i32::MAX as u64;

#[derive(Debug, PartialEq)]
enum Stop {
    Call,
    Signal(libc::c_int),
    End(libc::c_int),
}

/// Waits for one of the threads that this thread traces; other threads have children, too.
fn wait(thread: libc::pid_t) -> (libc::pid_t, Stop) {
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    let thread = unsafe { libc::waitpid(thread, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(thread > 0, "{}", io::Error::last_os_error());
    let stop = match status {
        _ if !libc::WIFSTOPPED(status) => Stop::End(status),
        _ if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => Stop::Call,
        _ => Stop::Signal(libc::WSTOPSIG(status)),
    };
    (thread, stop)
}

/// The call that a thread enters, and its first argument; `None` where it leaves one.
fn entered(thread: libc::pid_t) -> Option<(u64, u64)> {
    // SAFETY: all zeros are valid, and the kernel writes `size` bytes at most.
    let (info, written) = unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        let size = size_of_val(&info);
        let written = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, ptr::from_mut(&mut info));
        (info, written)
    };
    assert!(written > 0, "PTRACE_GET_SYSCALL_INFO: {}", io::Error::last_os_error());
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: `op` says which of the variants the kernel has written.
    let entry = unsafe { info.u.entry };
    Some((entry.nr, entry.args[0]))
}

/// A request with a number, to a thread that stands still, unless it was killed meanwhile.
fn request(request: libc::c_uint, thread: libc::pid_t, data: libc::c_int) {
    // SAFETY: these requests take numbers alone.
    if unsafe { libc::ptrace(request, thread, 0, libc::c_long::from(data)) } != 0 {
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{error}");
    }
}
