//! The times that the standard library does not tell.
#![allow(unsafe_code)] // clock_gettime(2); rustix's would look for the vDSO itself, which valgrind takes away

use std::time::Duration;

/// The longest tick of a kernel, which is as exact as [`milliseconds`] are (CONFIG_HZ of 100).
pub(crate) const TICK: u64 = 10;

/// Milliseconds of the monotonic clock, up to a tick ago: a fifth of what the exact one costs.
pub(crate) fn milliseconds() -> u64 {
    // Neither is negative.
    let now = get(libc::CLOCK_MONOTONIC_COARSE);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// What this thread has had of its core.
pub(crate) fn of_thread() -> Duration {
    let time = get(libc::CLOCK_THREAD_CPUTIME_ID);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of the monotonic clock, exactly.
pub(crate) fn nanoseconds() -> u64 {
    // Neither is negative.
    let now = get(libc::CLOCK_MONOTONIC);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn get(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}
