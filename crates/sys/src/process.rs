//! Starting a program that outlives its starter, and what a service manager hands over.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts `command` as a process of its own: not a child of this one (no SIGCHLD, nothing
/// to wait for later), in a session of its own, without any descriptor of this process but
/// the standard streams that the command has. Returns when the program has been loaded,
/// which takes a few milliseconds.
///
/// # Errors
///
/// fork(2) and execve(2).
pub fn start_apart(command: &mut Command) -> io::Result<()> {
    command.current_dir("/");
    // SAFETY: the closure runs in a fresh child with one thread; it makes only system calls,
    // without memory of ours, and leaves through `_exit` where it does not return.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // A plain fork; its child goes on to the program, and what it is a child of ends.
            match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
                0 => {}
                -1 => return Err(io::Error::last_os_error()),
                _ => libc::_exit(0),
            }
            // Whatever the program forgot to mark: held open elsewhere, its connections
            // would never end. Kernels before 5.11 lack the flag.
            if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
                for descriptor in 3..65_536 {
                    libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
            Ok(())
        });
    }
    match command.spawn()?.wait() {
        // A parent that ignores SIGCHLD gets no status of its children (waitpid(2)).
        Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(error),
        _ => Ok(()),
    }
}

/// A variable of the environment; `None` in a process that has more rights than its caller, who
/// must not steer it (AT_SECURE, getauxval(3); secure_getenv(3)).
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: reads the process's auxiliary vector; there is nothing to keep.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    if is_secure { None } else { std::env::var_os(name) }
}

/// This process's user, if its real, effective and saved users are one, so that it cannot become
/// another by itself unless it is privileged (credentials(7)).
pub fn sole_user() -> Option<u32> {
    let [mut real, mut effective, mut saved] = [0; 3];
    // SAFETY: the kernel writes three live integers.
    let status = unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) };
    (status == 0 && real == effective && effective == saved).then_some(real)
}

/// Executes `program` in place of this one: the same process, with the same descriptors, signal
/// mask and ignored signals, which `std::process::Command` would reset. A file without a known
/// format is a script of the shell, as for execvp(3). Returns only if it fails.
pub fn execute(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let environment = pointers(environment);
    let run = |program: &CStr, arguments: &[*const libc::c_char]| {
        // SAFETY: both arrays end with null, and their strings outlive the call.
        unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        io::Error::last_os_error()
    };
    let mut given = pointers(arguments);
    let error = run(program, &given);
    if error.raw_os_error() != Some(libc::ENOEXEC) {
        return error;
    }
    const SHELL: &CStr = c"/bin/sh";
    given.splice(0..given.len().min(2) - 1, [SHELL.as_ptr(), program.as_ptr()]);
    run(SHELL, &given)
}

/// The listening socket that a service manager started this process with (sd_listen_fds(3)),
/// if it did. To be asked once, before the process has opened anything.
///
/// # Errors
///
/// `InvalidInput` if it handed over more than one.
pub fn activated_listener() -> io::Result<Option<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => {
            // SAFETY: by the protocol descriptor 3 is open and ours, and this process has
            // no other owner of it.
            let listener = unsafe { OwnedFd::from_raw_fd(3) };
            rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
            Ok(Some(listener))
        }
        Some(count) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the service manager handed over {count} sockets, one is needed"),
        )),
    }
}
