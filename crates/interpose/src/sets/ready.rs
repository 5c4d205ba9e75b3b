//! The descriptor by which a set that sleeps is woken.

use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::EventfdFlags;

use crate::kernel;
use crate::real;

/// An eventfd that can always be read: set to watch it, a set wakes. Nobody reads it, and a
/// process forked from this one has it, too. -1: none yet.
static READY: AtomicI32 = AtomicI32::new(-1);

/// Makes the descriptor, with a number from `lowest` on. False: the process may have no more.
pub(crate) fn prepare(lowest: fn() -> i32) -> bool {
    if READY.load(Ordering::Relaxed) < 0 {
        let low = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        READY.store(low.map_or(-1, |low| moved(low.into_raw_fd(), lowest())), Ordering::Relaxed);
    }
    READY.load(Ordering::Relaxed) >= 0
}

/// The library's own descriptor of it.
pub(crate) fn hidden() -> Option<i32> {
    Some(READY.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
}

/// Leaves its number to the program, which takes it.
pub(crate) fn leave_number() {
    if let Some(old) = hidden() {
        READY.store(moved(old, old + 1), Ordering::Relaxed);
    }
}

/// Has a file under a number from `lowest` on, or under any other; -1: neither.
fn moved(old: i32, lowest: i32) -> i32 {
    let duplicate = |lowest: i32| kernel::control(old, libc::F_DUPFD_CLOEXEC, lowest);
    let new = [lowest, 3].into_iter().map(duplicate).find(|new| *new >= 0).unwrap_or(-1);
    // SAFETY: our own descriptor, which nobody else names.
    unsafe { real::close(old) };
    new
}
