//! epoll(7): which of many descriptors have become ready.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Readable, or end of file.
pub const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// Urgent data.
pub const URGENT: u32 = libc::EPOLLPRI as u32;
/// The peer will send no more.
pub const PEER_ENDED: u32 = libc::EPOLLRDHUP as u32;
/// An error waits; always reported, asked for or not.
pub const ERROR: u32 = libc::EPOLLERR as u32;
/// Both directions are shut; always reported, asked for or not.
pub const HANG_UP: u32 = libc::EPOLLHUP as u32;
/// Report changes only, not states.
pub const EDGES: u32 = libc::EPOLLET as u32;

/// Report once, then nothing until the descriptor is changed.
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// One readiness report.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Event(libc::epoll_event);

impl Event {
    /// No event: room for one.
    pub const NONE: Event = Event(libc::epoll_event { events: 0, u64: 0 });

    /// What the descriptor was added with.
    #[inline]
    pub fn data(&self) -> u64 {
        self.0.u64
    }

    /// What it is ready for, as a set of this module's constants.
    #[inline]
    pub fn readiness(&self) -> u32 {
        self.0.events
    }
}

/// An epoll instance.
pub struct Set {
    fd: OwnedFd,
    /// The kernel lacks epoll_pwait2 (before 5.11), or a filter forbids it.
    coarse: AtomicBool,
}

impl Set {
    /// An empty set (epoll_create1(2)).
    pub fn new() -> io::Result<Set> {
        Ok(Set { fd: epoll::create(CreateFlags::CLOEXEC)?, coarse: AtomicBool::new(false) })
    }

    /// Adds a descriptor. One that was added already, through a file that outlived its
    /// earlier owner, gets the new interest and data.
    ///
    /// # Errors
    ///
    /// epoll_ctl(2); EPERM for a file that is always ready.
    pub fn add(&self, fd: BorrowedFd<'_>, interest: u32, data: u64) -> io::Result<()> {
        let (data_of, flags) = (EventData::new_u64(data), EventFlags::from_bits_retain(interest));
        match epoll::add(&self.fd, fd, data_of, flags) {
            Err(Errno::EXIST) => self.modify(fd, interest, data),
            outcome => Ok(outcome?),
        }
    }

    /// Changes a descriptor's interest; what it is ready for now is reported again.
    ///
    /// # Errors
    ///
    /// epoll_ctl(2).
    pub fn modify(&self, fd: BorrowedFd<'_>, interest: u32, data: u64) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, EventData::new_u64(data), EventFlags::from_bits_retain(interest))?)
    }

    /// Has one report made of what a descriptor is, or becomes, ready for: added, or changed if
    /// the set had it (`had` says what is tried first). It is named by its number alone: one that
    /// was closed is EBADF, or another file that has the number.
    ///
    /// # Errors
    ///
    /// epoll_ctl(2); EPERM for a file that is always ready.
    pub fn report_once(&self, fd: RawFd, interest: u32, data: u64, had: bool) -> io::Result<()> {
        let call = |operation| {
            let mut event = libc::epoll_event { events: interest | ONCE, u64: data };
            // SAFETY: the kernel reads one live event; any number may be given for a descriptor.
            match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let (first, otherwise, unless) = match had {
            true => (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD, libc::ENOENT),
            false => (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EEXIST),
        };
        match call(first) {
            Err(error) if error.raw_os_error() == Some(unless) => call(otherwise),
            outcome => outcome,
        }
    }

    /// Takes a descriptor out.
    ///
    /// # Errors
    ///
    /// epoll_ctl(2).
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits for at most `limit` (`None`: for ever), to the nanosecond where the kernel
    /// can, else to the next full millisecond. Returns how many of `events` it filled.
    ///
    /// # Errors
    ///
    /// epoll_wait(2); EINTR if a signal ended the sleep.
    pub fn wait(&self, events: &mut [Event], limit: Option<Duration>) -> io::Result<usize> {
        let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
        let fine = limit.filter(|limit| limit.subsec_nanos() % 1_000_000 != 0);
        if let Some(limit) = fine
            && !self.coarse.load(Ordering::Relaxed)
        {
            let limit = libc::timespec {
                tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            // SAFETY: the kernel writes at most `room` events into the live slice, whose
            // elements are plain epoll_events, and reads one live timespec; the absent
            // signal mask is allowed.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    self.fd.as_raw_fd(),
                    events.as_mut_ptr().cast::<libc::epoll_event>(),
                    room,
                    &raw const limit,
                    ptr::null::<libc::sigset_t>(),
                    0usize,
                )
            };
            if count >= 0 {
                return Ok(count as usize);
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
                return Err(error);
            }
            self.coarse.store(true, Ordering::Relaxed);
        }
        let milliseconds = limit.map_or(-1, full_milliseconds);
        // SAFETY: as above.
        let count =
            unsafe { libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), room, milliseconds) };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// For a kernel that knows no shorter times: not less, so that nothing wakes early and waits again.
fn full_milliseconds(limit: Duration) -> libc::c_int {
    libc::c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_times_are_less_than_a_millisecond_late() {
        for (nanos, milliseconds) in
            [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (u64::MAX, libc::c_int::MAX)]
        {
            assert_eq!(full_milliseconds(Duration::from_nanos(nanos)), milliseconds, "{nanos} ns");
        }
    }

    #[test]
    fn a_descriptor_is_told_by_its_data() {
        let set = Set::new().unwrap();
        let eventfd = crate::eventfd::create().unwrap();
        set.add(eventfd.as_fd(), IN | EDGES, 7).unwrap();
        let mut events = [Event::NONE; 4];
        assert_eq!(set.wait(&mut events, Some(Duration::from_micros(10))).unwrap(), 0);
        crate::eventfd::raise(eventfd.as_fd());
        assert_eq!(set.wait(&mut events, None).unwrap(), 1);
        assert_eq!((events[0].data(), events[0].readiness() & IN), (7, IN));
        assert_eq!(set.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        // Adding again changes the data, and reports the present state once more.
        set.add(eventfd.as_fd(), IN | EDGES, 8).unwrap();
        assert_eq!(set.wait(&mut events, Some(Duration::ZERO)).unwrap(), 1);
        assert_eq!(events[0].data(), 8);
        set.remove(eventfd.as_fd()).unwrap();
        assert_eq!(set.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    }
}
