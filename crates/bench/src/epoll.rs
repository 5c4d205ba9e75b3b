//! The epoll instance of the client and of the epoll servers; no more than its system calls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An epoll instance (epoll(7)).
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 returns a descriptor that nobody else owns.
        unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                descriptor => Ok(Self(OwnedFd::from_raw_fd(descriptor))),
            }
        }
    }

    /// Adds or modifies (`EPOLL_CTL_*`) what is watched of a descriptor; `name` comes with its events.
    #[inline]
    pub(crate) fn control(
        &self,
        operation: i32,
        descriptor: RawFd,
        name: u64,
        events: i32,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: name };
        // SAFETY: `event` is valid for the read.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, descriptor, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits so many milliseconds at most, -1 for ever; none when a signal came.
    #[inline]
    pub(crate) fn wait<'events>(
        &self,
        events: &'events mut [libc::epoll_event],
        milliseconds: i32,
    ) -> io::Result<&'events [libc::epoll_event]> {
        // SAFETY: the buffer is valid for its length.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, milliseconds)
        };
        match count {
            0.. => Ok(&events[..count as usize]),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(&[]),
                error => Err(error),
            },
        }
    }
}
