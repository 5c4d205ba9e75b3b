//! Numbers of records that were used, and are nobody's.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::lock::Lock;

/// The numbers that were given back; each record keeps that of the next one.
pub(crate) struct FreeList {
    lock: Lock,
    /// A number, and 1; 0: there is none. Guarded by `lock`, as the records' words are.
    first: AtomicU32,
}

impl FreeList {
    pub(crate) const fn new() -> FreeList {
        FreeList { lock: Lock::new(), first: AtomicU32::new(0) }
    }

    /// The one that was given back last.
    pub(crate) fn take(&self, next: impl FnOnce(u32) -> &'static AtomicU32) -> Option<u32> {
        let _held = self.lock.hold();
        let number = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        self.first.store(next(number).load(Ordering::Relaxed), Ordering::Relaxed);
        Some(number)
    }

    /// `next`: the word of the record with this number.
    pub(crate) fn give(&self, number: u32, next: &AtomicU32) {
        let _held = self.lock.hold();
        next.store(self.first.load(Ordering::Relaxed), Ordering::Relaxed);
        self.first.store(number + 1, Ordering::Relaxed);
    }

    /// In the child of a fork, where no other thread holds its lock.
    pub(crate) fn reset(&self) {
        self.lock.reset();
    }
}
