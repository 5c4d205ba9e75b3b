//! Whether this process has one thread.
#![allow(unsafe_code)] // a byte of libc's is read

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};

/// Used until libc's own byte is found, or if it has none.
static MANY: AtomicU8 = AtomicU8::new(0);
static ALONE: AtomicPtr<AtomicU8> = AtomicPtr::new((&raw const MANY).cast_mut());

/// Finds libc's byte (glibc from 2.32 on), before the program's code runs.
pub(crate) fn find() {
    // SAFETY: the name ends with 0, and RTLD_DEFAULT is a handle that dlsym(3) accepts.
    let byte = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !byte.is_null() {
        ALONE.store(byte.cast(), Relaxed);
    }
}

/// Identifies the calling thread among those that live; not 0.
#[inline]
pub(crate) fn own() -> usize {
    // SAFETY: libc's address of this thread's errno.
    unsafe { libc::__errno_location() }.addr()
}

/// Whether no other thread runs. The end of a thread may go unnoticed: then it stays false for
/// longer.
#[inline(always)]
pub(crate) fn is_alone() -> bool {
    // SAFETY: `MANY`, or the char of <sys/single_threaded.h>, which lives as long as libc.
    unsafe { &*ALONE.load(Relaxed) }.load(Relaxed) != 0
}
