//! The descriptor that wakes a sleeping set.

use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::EventfdFlags;

use crate::kernel;
use crate::real;

/// An eventfd that is always readable: registering it wakes a set. It is never read, and forked
/// processes share it. -1: none yet.
static READY: AtomicI32 = AtomicI32::new(-1);

/// Creates the descriptor, with a number from `lowest` on. False: no descriptor is left.
pub(crate) fn prepare(lowest: fn() -> i32) -> bool {
    if READY.load(Ordering::Relaxed) < 0 {
        let low = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        READY.store(low.map_or(-1, |low| moved(low.into_raw_fd(), lowest())), Ordering::Relaxed);
    }
    READY.load(Ordering::Relaxed) >= 0
}

/// Its number, which belongs to the library.
pub(crate) fn hidden() -> Option<i32> {
    Some(READY.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
}

/// Moves it to another number, since the program is about to use this one.
pub(crate) fn vacate_number() {
    if let Some(old) = hidden() {
        READY.store(moved(old, old + 1), Ordering::Relaxed);
    }
}

/// Duplicates `old` to a number from `lowest` on, or to any other, and closes it; -1: neither is
/// free.
fn moved(old: i32, lowest: i32) -> i32 {
    let duplicate = |lowest: i32| kernel::control(old, libc::F_DUPFD_CLOEXEC, lowest);
    let new = [lowest, 3].into_iter().map(duplicate).find(|new| *new >= 0).unwrap_or(-1);
    // SAFETY: the library's own descriptor, which is in use nowhere else.
    unsafe { real::close(old) };
    new
}
