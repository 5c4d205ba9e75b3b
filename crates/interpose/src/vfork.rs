//! vfork(2): a child that has its parent's memory, and descriptors of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sockets;

/// The process whose descriptors the table knows; 0: it was forked, and has not lent its memory.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Another process may have this one's memory; also until the table knows any.
static LENDS: AtomicBool = AtomicBool::new(true);

/// This process has its memory for itself. `process` is getpid(2), or 0: that costs a call.
pub(crate) fn owns_memory(process: u32) {
    OWNER.store(process, Ordering::Relaxed);
    LENDS.store(false, Ordering::Relaxed);
}

/// A child is about to be made that has this process's memory: from here on who runs is asked of
/// the kernel, for good.
pub(crate) fn lends_memory() {
    if !LENDS.load(Ordering::Relaxed) {
        if OWNER.load(Ordering::Relaxed) == 0 {
            OWNER.store(std::process::id(), Ordering::Relaxed);
        }
        // Who sees this sees the owner.
        LENDS.store(true, Ordering::Release);
    }
}

/// Whether this is the child of a vfork(2): it has descriptors of its own, and its parent's
/// memory. What it does to its descriptors until it executes a program is its own business.
/// Asked only where an entry would change: getpid(2) is one of the calls that short connections feel.
pub(crate) fn borrows_memory() -> bool {
    LENDS.load(Ordering::Acquire) && {
        let owner = OWNER.load(Ordering::Relaxed);
        owner == 0 || owner != std::process::id()
    }
}

/// The same where it matters to sockets alone: without one no call is spent on it.
pub(crate) fn borrows_sockets() -> bool {
    sockets::any() && borrows_memory()
}

/// The child of a vfork(2) has put another file at the number of a socket of this process's, and may use it
/// until it executes a program, or ends.
static DIVERGES: AtomicBool = AtomicBool::new(false);

/// This process, the child of a vfork(2), changes what lies at a number.
pub(crate) fn diverges() {
    DIVERGES.store(true, Ordering::Relaxed);
}

/// It executes a program, or ends.
pub(crate) fn diverges_no_more() {
    if DIVERGES.load(Ordering::Relaxed) && borrows_memory() {
        DIVERGES.store(false, Ordering::Relaxed);
    }
}

/// Whether numbers mean something else here than the table says.
#[inline(always)]
pub(crate) fn is_elsewhere() -> bool {
    DIVERGES.load(Ordering::Relaxed) && borrows_memory()
}
