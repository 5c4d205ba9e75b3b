//! Numbers of records that were used and are free.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::lock::Lock;

/// A list of free numbers; each record holds the next one.
pub(crate) struct FreeList {
    lock: Lock,
    /// A number, plus 1; 0: the list is empty. Guarded by `lock`, like the records' words.
    first: AtomicU32,
}

impl FreeList {
    pub(crate) const fn new() -> FreeList {
        FreeList { lock: Lock::new(), first: AtomicU32::new(0) }
    }

    /// Removes the number that was added last.
    pub(crate) fn pop(&self, next: impl FnOnce(u32) -> &'static AtomicU32) -> Option<u32> {
        let _held = self.lock.hold();
        let number = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        self.first.store(next(number).load(Ordering::Relaxed), Ordering::Relaxed);
        Some(number)
    }

    /// Adds a number. `next`: the word of its record.
    pub(crate) fn push(&self, number: u32, next: &AtomicU32) {
        let _held = self.lock.hold();
        next.store(self.first.load(Ordering::Relaxed), Ordering::Relaxed);
        self.first.store(number + 1, Ordering::Relaxed);
    }

    /// In the child of a fork: no other thread holds its lock.
    pub(crate) fn reset(&self) {
        self.lock.reset();
    }
}
