//! The kind of each descriptor in this module.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// The option is on, and the process does not restrict its system calls.
pub(super) static ON: AtomicBool = AtomicBool::new(false);

/// Whether workers have listen queues of their own.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Descriptors with a higher number are not tracked.
pub(super) const DESCRIPTORS: usize = 4096;
/// Listeners of one process that are tracked, and epoll sets that wait for any of them.
pub(super) const LISTENERS: usize = 32;
pub(super) const SETS: usize = 128;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Nothing,
    Listener(usize),
    Set(usize),
    /// A descriptor of the library's own.
    Own,
    /// A socket that cannot have siblings.
    Unique,
}

const OWN: u8 = 254;
const UNIQUE: u8 = 255;
const FIRST_SET: usize = 1 + LISTENERS;

static WHAT: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];

#[inline]
pub(super) fn what(fd: c_int) -> What {
    let Some(word) = WHAT.get(fd as usize).filter(|_| is_on()) else { return What::Nothing };
    match word.load(Relaxed) {
        0 => What::Nothing,
        OWN => What::Own,
        UNIQUE => What::Unique,
        set if usize::from(set) >= FIRST_SET => What::Set(usize::from(set) - FIRST_SET),
        listener => What::Listener(usize::from(listener) - 1),
    }
}

/// Whether a descriptor is a listener, waits for one, or is the library's own.
pub(crate) fn knows(fd: c_int) -> bool {
    what(fd) != What::Nothing
}

/// False: its number is too high.
pub(super) fn set_what(fd: c_int, what: What) -> bool {
    let value = match what {
        What::Nothing => 0,
        What::Listener(number) => 1 + number,
        What::Set(number) => FIRST_SET + number,
        What::Own => OWN.into(),
        What::Unique => UNIQUE.into(),
    };
    // LISTENERS and SETS leave 93 values unused.
    WHAT.get(fd as usize).inspect(|word| word.store(value as u8, Relaxed)).is_some()
}
