//! Signals as something to read (signalfd(2)).

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Keeps the signals from interrupting the calling thread, and from threads it starts
/// later, and returns a non-blocking descriptor that `next` reads them from.
pub fn redirect(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is a valid place for sigemptyset to fill; the calls write and
    // read one live set.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            if libc::sigaddset(&raw mut set, signal) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let status = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        if status != 0 {
            return Err(io::Error::from_raw_os_error(status));
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The next signal that arrived, if any.
pub fn next(signals: &OwnedFd) -> io::Result<Option<i32>> {
    // SAFETY: the struct is integers, for which zero is a value; the kernel writes at most
    // its size.
    let (count, information) = unsafe {
        let mut information: libc::signalfd_siginfo = mem::zeroed();
        let count = libc::read(signals.as_raw_fd(), (&raw mut information).cast(), size_of_val(&information));
        (count, information)
    };
    if count == size_of_val(&information) as isize {
        return Ok(Some(information.ssi_signo as i32));
    }
    let error = io::Error::last_os_error();
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
        Ok(None)
    } else {
        Err(error)
    }
}
