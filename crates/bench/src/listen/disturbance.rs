//! Stopping one worker of a server: a process by a signal, a thread by ptrace(2), as signals stop whole processes.

use std::io;

/// Goes on when dropped.
pub(super) struct Stopped {
    worker: libc::pid_t,
    is_traced: bool,
}

impl Stopped {
    pub(super) fn process(worker: libc::pid_t) -> io::Result<Stopped> {
        // SAFETY: a child of our server, which lives: it ends with the server.
        check(unsafe { libc::kill(worker, libc::SIGSTOP) }.into())?;
        Ok(Stopped { worker, is_traced: false })
    }

    pub(super) fn thread(worker: libc::pid_t) -> io::Result<Stopped> {
        trace(libc::PTRACE_SEIZE, worker)?;
        let stopped = Stopped { worker, is_traced: true };
        trace(libc::PTRACE_INTERRUPT, worker)?;
        let mut status = 0;
        // SAFETY: `status` is valid for the write.
        check(unsafe { libc::waitpid(worker, &raw mut status, libc::__WALL) }.into())?;
        Ok(stopped)
    }

    /// Ends it, a process.
    pub(super) fn kill(self) -> io::Result<()> {
        // SAFETY: as above.
        check(unsafe { libc::kill(self.worker, libc::SIGKILL) }.into())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // One that has ended needs nothing.
        let _ = match self.is_traced {
            true => trace(libc::PTRACE_DETACH, self.worker),
            // SAFETY: as above.
            false => check(unsafe { libc::kill(self.worker, libc::SIGCONT) }.into()),
        };
    }
}

fn trace(request: libc::c_uint, thread: libc::pid_t) -> io::Result<()> {
    // SAFETY: these requests read and write no memory of ours, and change but whether the thread runs.
    check(unsafe { libc::ptrace(request, thread, 0, 0) })
}

pub(super) fn check(status: libc::c_long) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
