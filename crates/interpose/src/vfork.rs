//! vfork(2): a child that shares its parent's memory, and has descriptors of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sockets;

/// The process that the table belongs to; 0: it was forked, and has not shared its memory.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Another process may share this one's memory; also true until the table has an owner.
static LENDS: AtomicBool = AtomicBool::new(true);

/// This process has its memory to itself. `process` is getpid(2), or 0, which saves a call.
pub(crate) fn owns_memory(process: u32) {
    OWNER.store(process, Ordering::Relaxed);
    LENDS.store(false, Ordering::Relaxed);
}

/// A child that shares this process's memory is about to be made: from here on the current process
/// is asked of the kernel, for good.
pub(crate) fn lends_memory() {
    if !LENDS.load(Ordering::Relaxed) {
        if OWNER.load(Ordering::Relaxed) == 0 {
            OWNER.store(std::process::id(), Ordering::Relaxed);
        }
        // A thread that reads this also reads the owner.
        LENDS.store(true, Ordering::Release);
    }
}

/// Whether this is the child of a vfork(2), with its parent's memory and descriptors of its own.
/// The library does not track what it does to them until it executes a program. Checked only where
/// an entry would change: getpid(2) is noticeable in short connections.
pub(crate) fn borrows_memory() -> bool {
    LENDS.load(Ordering::Acquire) && {
        let owner = OWNER.load(Ordering::Relaxed);
        owner == 0 || owner != std::process::id()
    }
}

/// The same, for what concerns only sockets: makes no call if there are none.
pub(crate) fn borrows_sockets() -> bool {
    sockets::any() && borrows_memory()
}

/// The child of a vfork(2) has put another file at the number of one of this process's sockets, and
/// may use it until it executes a program or ends.
static DIVERGES: AtomicBool = AtomicBool::new(false);

/// This process, the child of a vfork(2), changes the file at a number.
pub(crate) fn diverges() {
    DIVERGES.store(true, Ordering::Relaxed);
}

/// It executes a program, or ends.
pub(crate) fn stops_diverging() {
    if DIVERGES.load(Ordering::Relaxed) && borrows_memory() {
        DIVERGES.store(false, Ordering::Relaxed);
    }
}

/// Whether numbers refer to other files here than in the table.
#[inline(always)]
pub(crate) fn is_elsewhere() -> bool {
    DIVERGES.load(Ordering::Relaxed) && borrows_memory()
}
