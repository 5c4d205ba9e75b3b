//! The atomics of shared memory, or those of the model checker.

#[cfg(ring_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(ring_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Orders our stores before our later loads: each side issues it between its own store
/// and its check of the other side's word.
#[inline(always)]
pub(crate) fn full_fence() {
    #[cfg(ring_loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(ring_loom))]
    fence();
}

/// A locked instruction on memory that is in the cache orders as `mfence` does (Intel SDM
/// volume 3, 9.2.5; AMD APM volume 2, 7.4.2), and waits for less.
#[cfg(all(not(ring_loom), not(miri), target_arch = "x86_64"))]
#[inline(always)]
#[allow(unsafe_code)]
fn fence() {
    // SAFETY: writes back what lies at the top of the stack, unchanged. Without `nomem`, the
    // compiler moves no access to memory across it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
}

#[cfg(all(not(ring_loom), any(miri, not(target_arch = "x86_64"))))]
#[inline(always)]
fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
