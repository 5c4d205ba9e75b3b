//! Times of the kernel's clocks, without libc: a library in front of it (libfaketime) may stop its
//! clock.
#![allow(unsafe_code)] // the vDSO's function (vdso(7))

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// The longest tick of a kernel, which is the resolution of [`milliseconds`] (CONFIG_HZ of 100).
pub(crate) const TICK: u64 = 10;

/// A time of CLOCK_MONOTONIC.
pub(crate) type Instant = Duration;

pub(crate) fn now() -> Instant {
    duration(get(libc::CLOCK_MONOTONIC))
}

pub(crate) fn elapsed(since: Instant) -> Duration {
    now().saturating_sub(since)
}

/// Milliseconds of the monotonic clock, up to a tick late: costs a fifth of the exact clock.
pub(crate) fn milliseconds() -> u64 {
    // Neither is negative.
    let now = get(libc::CLOCK_MONOTONIC_COARSE);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// A time as system calls take it, saturated.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    let tv_sec = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    libc::timespec { tv_sec, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Neither part is negative, and the nanoseconds are below a second.
fn duration(time: libc::timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of the monotonic clock, exactly.
pub(crate) fn nanoseconds() -> u64 {
    now().as_nanos() as u64
}

type Get = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// The vDSO's clock_gettime(2); null: there is none, as under valgrind.
static OF_VDSO: AtomicPtr<()> = AtomicPtr::new(null_mut());

#[cfg(target_arch = "aarch64")]
const NAME: &CStr = c"__kernel_clock_gettime";
#[cfg(not(target_arch = "aarch64"))]
const NAME: &CStr = c"__vdso_clock_gettime";

/// To be called at the start, before other threads hold the loader's lock.
pub(crate) fn find() {
    // SAFETY: names that end with 0. The loader lists the vDSO among its libraries, and loads
    // nothing.
    let function = unsafe {
        match libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) {
            vdso if vdso.is_null() => return,
            vdso => libc::dlsym(vdso, NAME.as_ptr()),
        }
    };
    OF_VDSO.store(function.cast(), Ordering::Relaxed);
}

fn get(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let function = OF_VDSO.load(Ordering::Relaxed);
    // SAFETY: room for the time, and a function of that type, which is never unmapped.
    unsafe {
        match function.is_null() {
            true => libc::clock_gettime(clock, &raw mut now),
            false => std::mem::transmute::<*mut (), Get>(function)(clock, &raw mut now),
        }
    };
    now
}
