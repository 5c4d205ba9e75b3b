//! Atomics and memory of the rings, or those of the model checker.

#[cfg(not(mtcp_loom))]
use std::mem::MaybeUninit;

#[cfg(mtcp_loom)]
pub(crate) use loom::sync::Arc;
#[cfg(mtcp_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(not(mtcp_loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(mtcp_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// A place of a ring. Its users say which of the two threads may use it when.
#[cfg(not(mtcp_loom))]
pub(crate) struct Place<T>(std::cell::UnsafeCell<MaybeUninit<T>>);

#[cfg(not(mtcp_loom))]
impl<T> Place<T> {
    pub(crate) fn new() -> Place<T> {
        Place(std::cell::UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// No other thread uses the place, and nothing is in it.
    pub(crate) unsafe fn put(&self, value: T) {
        // SAFETY: as the caller promises.
        unsafe { (*self.0.get()).write(value) };
    }

    /// # Safety
    /// No other thread uses the place, and a value is in it.
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: as the caller promises; nothing is in it from now on.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}

/// As above; loom finds a use that another thread's does not happen before.
#[cfg(mtcp_loom)]
pub(crate) struct Place<T>(loom::cell::UnsafeCell<Option<T>>);

#[cfg(mtcp_loom)]
impl<T> Place<T> {
    pub(crate) fn new() -> Place<T> {
        Place(loom::cell::UnsafeCell::new(None))
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn put(&self, value: T) {
        // SAFETY: as the caller promises.
        self.0.with_mut(|place| unsafe { assert!((*place).replace(value).is_none()) });
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: as the caller promises.
        self.0.with_mut(|place| unsafe { (*place).take().expect("a value") })
    }
}
