//! A lock of one word: held for moments, and across calls that the kernel answers by itself. A fork holds many.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::signals::Quiet;

/// Zeroed memory is a free lock.
#[derive(Debug, Default)]
pub(crate) struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;

/// Looks between two yields of the core: the holder may be waiting for it.
const LOOKS: u32 = 64;

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        // A handler that comes while it is held might want it, or leave for good.
        let quiet = Quiet::begin();
        // HELD-PAIR: acquire what the last holder stored.
        let free = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Made only if it is held: dropping it gives the lock back.
        free.then(|| Held(self, quiet))
    }

    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        let mut looks = 0u32;
        loop {
            if let Some(held) = self.try_hold() {
                return held;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Frees it for whoever held it: in the child of a fork, where no other thread lives.
    pub(crate) fn reset(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// Gives the lock back when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock, Quiet);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // HELD-PAIR: release what this holder stored.
        self.0.0.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    #[test]
    fn a_try_in_vain_leaves_the_lock_held() {
        let lock = Lock::new();
        let held = lock.hold();
        assert!(lock.try_hold().is_none() && lock.try_hold().is_none());
        drop(held);
        assert!(lock.try_hold().is_some());
    }

    #[test]
    #[allow(unsafe_code)] // what the lock guards
    fn one_thread_at_a_time() {
        struct Shared(Lock, UnsafeCell<u64>);
        // SAFETY: the number is reached with the lock held only.
        unsafe impl Sync for Shared {}
        impl Shared {
            fn add(&self) {
                let _held = self.0.hold();
                // SAFETY: the lock is held.
                unsafe { *self.1.get() += 1 };
            }
        }
        let shared = Shared(Lock::new(), UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| shared.add()));
            }
        });
        assert_eq!(shared.1.into_inner(), 200_000);
    }
}
