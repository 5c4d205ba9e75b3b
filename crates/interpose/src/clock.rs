//! The time, where a few milliseconds make no difference: a fifth of what the exact one costs.
#![allow(unsafe_code)] // clock_gettime(2); rustix's would look for the vDSO itself, which valgrind takes away

/// The longest tick of a kernel, which is as exact as [`milliseconds`] are (CONFIG_HZ of 100).
pub(crate) const TICK: u64 = 10;

/// Milliseconds of the monotonic clock, up to a tick ago.
pub(crate) fn milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    // Neither is negative.
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
