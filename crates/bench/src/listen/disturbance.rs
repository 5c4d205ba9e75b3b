//! Stopping one worker of a server: a process by a signal, a thread by ptrace(2), as signals stop whole processes.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

/// Goes on when dropped.
pub(super) struct Stopped {
    worker: Pid,
    is_traced: bool,
}

impl Stopped {
    pub(super) fn process(worker: Pid) -> io::Result<Stopped> {
        kill_process(worker, Signal::STOP)?;
        Ok(Stopped { worker, is_traced: false })
    }

    pub(super) fn thread(worker: Pid) -> io::Result<Stopped> {
        trace(libc::PTRACE_SEIZE, worker)?;
        let stopped = Stopped { worker, is_traced: true };
        trace(libc::PTRACE_INTERRUPT, worker)?;
        let mut status = 0;
        // SAFETY: `status` is valid for the write.
        check(unsafe { libc::waitpid(worker.as_raw_pid(), &raw mut status, libc::__WALL) }.into())?;
        Ok(stopped)
    }

    /// Ends it, a process.
    pub(super) fn kill(self) -> io::Result<()> {
        Ok(kill_process(self.worker, Signal::KILL)?)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // One that has ended needs nothing.
        let _ = match self.is_traced {
            true => trace(libc::PTRACE_DETACH, self.worker),
            false => kill_process(self.worker, Signal::CONT).map_err(io::Error::from),
        };
    }
}

fn trace(request: libc::c_uint, thread: Pid) -> io::Result<()> {
    // SAFETY: these requests read and write no memory of ours, and change but whether the thread runs.
    check(unsafe { libc::ptrace(request, thread.as_raw_pid(), 0, 0) })
}

fn check(status: libc::c_long) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
