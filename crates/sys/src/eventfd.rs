//! eventfd(2): a descriptor that one thread makes readable for another.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A non-blocking eventfd at 0.
pub fn create() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no memory of ours.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes it readable.
pub fn raise(fd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the kernel reads eight bytes of a live array. A full counter (EAGAIN) is
    // readable already, which is all that is wanted.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Makes it unreadable.
pub fn drain(fd: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // SAFETY: the kernel writes eight bytes into a live array. An empty counter (EAGAIN)
    // is what is wanted.
    unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}
