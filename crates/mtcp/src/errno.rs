//! Errors as `errno`, and as lines on standard error.

use std::io;

use packet::tun::OpenError;

/// A positive error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const BAD: Errno = Errno(libc::EBADF);
/// A defect of the library has ended the context.
pub(crate) const TORN: Errno = Errno(libc::ENOTRECOVERABLE);
/// The context belongs to the process that forked this one.
pub(crate) const FORKED: Errno = Errno(libc::ECHILD);
pub(crate) const FAULT: Errno = Errno(libc::EFAULT);
pub(crate) const INTERRUPTED: Errno = Errno(libc::EINTR);
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const NOT_SOCKET: Errno = Errno(libc::ENOTSOCK);

impl From<tcp::sockets::Errno> for Errno {
    fn from(error: tcp::sockets::Errno) -> Errno {
        Errno(error.number())
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Why there is no TUN device.
pub(crate) fn open_error(error: OpenError) -> Errno {
    match error {
        OpenError::Missing(_) => Errno(libc::ENODEV),
        OpenError::Denied(_) => Errno(libc::EACCES),
        OpenError::NotAdmin(_) => Errno(libc::EPERM),
        OpenError::Exists { .. } => Errno(libc::EBUSY),
        OpenError::Io(cause) => cause.into(),
    }
}

/// What no error number says.
pub(crate) fn say(problem: impl std::fmt::Display) {
    eprintln!("megapipe: {problem}");
}

/// Sets `errno` of the calling thread.
pub(crate) fn set(error: Errno) {
    // SAFETY: the address is that of the calling thread's errno, always valid.
    unsafe { *libc::__errno_location() = error.0 };
}

/// What C gets: the number, or -1 and `errno`.
pub(crate) fn int(result: Result<i32, Errno>) -> libc::c_int {
    result.unwrap_or_else(|error| {
        set(error);
        -1
    })
}

/// As [`int`], for lengths.
pub(crate) fn length(result: Result<usize, Errno>) -> libc::ssize_t {
    match result {
        Ok(len) => libc::ssize_t::try_from(len).unwrap_or(libc::ssize_t::MAX),
        Err(error) => {
            set(error);
            -1
        }
    }
}
