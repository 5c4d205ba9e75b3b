//! Whether this process promotes connections: by its settings, and not once it confines itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::settings::Mode;

static MODE: AtomicU32 = AtomicU32::new(Mode::Off as u32);
static CONFINED: AtomicBool = AtomicBool::new(false);

pub(crate) fn set(mode: Mode) {
    MODE.store(mode as u32, Ordering::Relaxed);
}

/// Whether connections are promoted at all.
pub(crate) fn promotes() -> bool {
    MODE.load(Ordering::Relaxed) >= Mode::Auto as u32
}

/// Whether calls are counted, but nothing is promoted.
pub(crate) fn observes() -> bool {
    MODE.load(Ordering::Relaxed) == Mode::Observe as u32
}

pub(crate) fn is_eager() -> bool {
    MODE.load(Ordering::Relaxed) == Mode::Eager as u32
}

/// True once seccomp(2) is active: no system calls but the program's own.
#[inline]
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

pub(crate) fn confine() {
    CONFINED.store(true, Ordering::Relaxed);
}
