//! io_uring, by which a program reads and writes past libc: in a program that has one nothing
//! is promoted.
//!
//! A ring that comes later is seen where it is made by syscall(2), as libuv and Rust's
//! `io-uring` do; liburing has system calls of its own, and only what it made before the first
//! connection is offered is found.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Dir, Mode, OFlags};

static HERE: AtomicBool = AtomicBool::new(false);

/// Whether this process has a ring, as far as was seen.
pub(crate) fn is_here() -> bool {
    HERE.load(Ordering::Relaxed)
}

/// The program made a ring. True: its first.
pub(crate) fn was_made() -> bool {
    !HERE.swap(true, Ordering::Relaxed)
}

/// Looks for one among the descriptors, before anything is promoted.
pub(crate) fn look() {
    if found().unwrap_or(false) {
        HERE.store(true, Ordering::Relaxed);
    }
}

/// Whether there is one now.
fn found() -> rustix::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let target = rustix::fs::readlinkat(directory.as_fd(), entry?.file_name(), Vec::new());
        if target.is_ok_and(|target| target.as_bytes() == b"anon_inode:[io_uring]") {
            return Ok(true);
        }
    }
    Ok(false)
}
