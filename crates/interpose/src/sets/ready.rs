//! The descriptor that wakes a sleeping set.

use std::sync::OnceLock;

use rustix::event::EventfdFlags;

use crate::hidden::{self, Hidden};

/// An eventfd that is always readable: registering it wakes a set. It is never read, and forked
/// processes share it.
static READY: OnceLock<Hidden> = OnceLock::new();

/// Creates the descriptor, for the thread that has the promoter. False: no descriptor is left.
pub(crate) fn prepare() -> bool {
    if READY.get().is_none() {
        let low = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        if let Some(ready) = low.ok().and_then(hidden::hide) {
            let _ = READY.set(ready);
        }
    }
    READY.get().is_some()
}

/// Its number; less than 0: there is none.
pub(super) fn number() -> i32 {
    READY.get().map_or(-1, Hidden::fd)
}
