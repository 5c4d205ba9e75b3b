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
pub(super) enum Kind {
    Nothing,
    Listener(usize),
    Set(usize),
    /// A socket that cannot have siblings.
    Unique,
}

const UNIQUE: u8 = 255;
const FIRST_SET: usize = 1 + LISTENERS;

static KINDS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];

#[inline]
pub(super) fn kind_of(fd: c_int) -> Kind {
    let Some(word) = KINDS.get(fd as usize).filter(|_| is_on()) else { return Kind::Nothing };
    match word.load(Relaxed) {
        0 => Kind::Nothing,
        UNIQUE => Kind::Unique,
        set if usize::from(set) >= FIRST_SET => Kind::Set(usize::from(set) - FIRST_SET),
        listener => Kind::Listener(usize::from(listener) - 1),
    }
}

/// Whether a descriptor is a listener, or waits for one.
pub(crate) fn tracks(fd: c_int) -> bool {
    kind_of(fd) != Kind::Nothing
}

/// False: its number is too high.
pub(super) fn set_kind(fd: c_int, kind_of: Kind) -> bool {
    let value = match kind_of {
        Kind::Nothing => 0,
        Kind::Listener(number) => 1 + number,
        Kind::Set(number) => FIRST_SET + number,
        Kind::Unique => UNIQUE.into(),
    };
    // LISTENERS and SETS leave 94 values unused.
    KINDS.get(fd as usize).inspect(|word| word.store(value as u8, Relaxed)).is_some()
}
