//! eventfd(2): a descriptor that one thread makes readable for another.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;

/// A non-blocking eventfd at 0.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Makes it readable.
pub fn raise(fd: BorrowedFd<'_>) {
    // A full counter (EAGAIN) is readable already, which is all that is wanted.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes it unreadable.
pub fn drain(fd: BorrowedFd<'_>) {
    // An empty counter (EAGAIN) is what is wanted.
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
