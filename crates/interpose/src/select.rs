//! select(2), as poll(2) of the descriptors in its sets.
#![allow(unsafe_code)] // sets lie in the program's memory

use std::ffi::c_int;

use libc::{fd_set, pollfd, sigset_t};

use crate::epoll::Limit;
use crate::memory::{are_readable, are_writable};
use crate::poll;
use crate::sockets::{self, Socket, State};
use crate::table::{self, Entry};

/// The three sets of a call; null ones are empty.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

impl Sets {
    /// What `look` says of each set's words of as many bits.
    fn lie_there(self, count: usize, look: impl Fn(*mut u64, usize) -> bool) -> bool {
        let words = count.div_ceil(u64::BITS as usize);
        [self.read, self.write, self.except].iter().all(|set| set.is_null() || look(set.cast(), words))
    }
}

const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
const EXCEPT: i16 = libc::POLLPRI;

const MOST: usize = libc::FD_SETSIZE;

/// # Safety
///
/// `set` is null or a set.
unsafe fn has(set: *mut fd_set, fd: c_int) -> bool {
    // SAFETY: the caller's promise; fd is below FD_SETSIZE.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

/// The descriptors that are asked for reading; none, if that cannot be found out.
///
/// # Safety
///
/// As select(2).
pub(crate) unsafe fn asked_to_read(count: c_int, sets: Sets) -> impl Iterator<Item = c_int> {
    let lie_there = usize::try_from(count)
        .is_ok_and(|count| count <= MOST && sets.lie_there(count, |word, words| are_readable(word, words)));
    // SAFETY: the caller's promise.
    (0..if lie_there { count } else { 0 }).filter(move |&fd| unsafe { has(sets.read, fd) })
}

/// Whether a promoted socket is asked for reading.
///
/// # Safety
///
/// As select(2).
pub(crate) unsafe fn concerns(count: c_int, sets: Sets) -> bool {
    if !sockets::any() {
        return false;
    }
    // SAFETY: the caller's promise.
    let asked = unsafe { asked_to_read(count, sets) };
    asked.fold(false, |concerns, fd| {
        if let Entry::Set(set) = table::entry(fd) {
            crate::sets::watched_from_outside(set);
        }
        let promoted = |socket: &'static Socket| socket.state() == State::Promoted;
        concerns || table::socket(fd).is_some_and(promoted)
    })
}

/// pselect(2) for sets of which [`concerns`] said yes.
///
/// # Safety
///
/// As pselect(2).
pub(crate) unsafe fn wait(count: c_int, sets: Sets, limit: Limit, mask: *const sigset_t) -> c_int {
    let mut room = [pollfd { fd: -1, events: 0, revents: 0 }; MOST];
    let mut used = 0;
    for fd in 0..count {
        // SAFETY: the caller's promise; `concerns` bounded the count.
        let (read, write, except) =
            unsafe { (has(sets.read, fd), has(sets.write, fd), has(sets.except, fd)) };
        let asked = |asked: bool, events: i16| if asked { events } else { 0 };
        let events = asked(read, libc::POLLIN) | asked(write, libc::POLLOUT) | asked(except, EXCEPT);
        if events != 0 {
            room[used] = pollfd { fd, events, revents: 0 };
            used += 1;
        }
    }
    let fds = &mut room[..used];
    // SAFETY: the caller's promise.
    if unsafe { poll::wait(fds, limit, mask) } < 0 {
        return -1;
    }
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        crate::real::set_errno(libc::EBADF);
        return -1;
    }
    if !sets.lie_there(usize::try_from(count).unwrap_or(0), are_writable) {
        crate::real::set_errno(libc::EFAULT);
        return -1;
    }
    let mut ready = 0;
    for set in [sets.read, sets.write, sets.except] {
        if !set.is_null() {
            // SAFETY: the caller's set: the first `count` bits are the call's.
            unsafe { clear(set, count) };
        }
    }
    for fd in fds.iter() {
        // As the kernel's select does it (fs/select.c, POLLIN_SET and the like).
        let kinds = [
            (sets.read, libc::POLLIN, READ | libc::POLLHUP | libc::POLLERR),
            (sets.write, libc::POLLOUT, WRITE | libc::POLLERR),
            (sets.except, EXCEPT, EXCEPT),
        ];
        for (set, asked, meant) in kinds {
            if fd.events & asked != 0 && fd.revents & meant != 0 {
                // SAFETY: a set that has this descriptor was asked for.
                unsafe { libc::FD_SET(fd.fd, set) };
                ready += 1;
            }
        }
    }
    ready
}

/// # Safety
///
/// `set` is a set.
unsafe fn clear(set: *mut fd_set, count: c_int) {
    for fd in 0..count {
        // SAFETY: the caller's promise; `concerns` bounded the count.
        unsafe { libc::FD_CLR(fd, set) };
    }
}
