//! io_uring, by which a program reads and writes without libc.
//!
//! A ring that is created and entered through syscall(2), as libuv and Rust's `io-uring` do, is
//! tracked: its submissions are read before the kernel gets them ([`rings`]; `calls` applies them
//! to sockets). A process with any other ring promotes nothing. liburing has system calls of its
//! own; its rings are found only if they were created before the first connection is offered.

use std::sync::atomic::{AtomicBool, Ordering};

use promote::summary::RingObstacle;
use rustix::fs::{Dir, Mode, OFlags};

use crate::stats;
use crate::table::{self, Entry};

pub(crate) mod rings;

static ANY_UNTRACKED: AtomicBool = AtomicBool::new(false);
static TRUSTED: AtomicBool = AtomicBool::new(false);
/// All connections were demoted.
static DEMOTED: AtomicBool = AtomicBool::new(false);

/// Sets whether the user states that untracked rings touch no sockets. Bytes that bypassed the
/// library on any connection disprove this.
pub(crate) fn trusts(trusted: bool) {
    TRUSTED.store(trusted, Ordering::Relaxed);
}

/// Whether this process has an untracked ring that may touch sockets.
pub(crate) fn has_untracked() -> bool {
    ANY_UNTRACKED.load(Ordering::Relaxed) && !TRUSTED.load(Ordering::Relaxed)
}

/// This process has an untracked ring from here on. True, once: all connections have to be demoted.
pub(crate) fn note_untracked(obstacle: RingObstacle) -> bool {
    stats::note_ring(obstacle);
    ANY_UNTRACKED.store(true, Ordering::Relaxed);
    has_untracked() && !DEMOTED.swap(true, Ordering::Relaxed)
}

/// Resets the state: for a fuzzer, each of whose scripts may end promotion.
#[cfg(fuzzing)]
pub fn forget() {
    ANY_UNTRACKED.store(false, Ordering::Relaxed);
    DEMOTED.store(false, Ordering::Relaxed);
}

/// Searches the descriptors for an untracked ring, before anything is promoted.
pub(crate) fn find() {
    if found().unwrap_or(false) {
        stats::note_ring(maker());
        ANY_UNTRACKED.store(true, Ordering::Relaxed);
    }
}

fn found() -> rustix::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let fd = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if fd.is_some_and(is_untracked) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether it is an untracked ring. One that another thread is creating or closing is none.
pub(crate) fn is_untracked(fd: i32) -> bool {
    let looks_so = || !matches!(table::entry(fd), Entry::Ring(_) | Entry::ClosingRing) && is_ring(fd);
    for _ in 0..AWAITED {
        if !looks_so() {
            return false;
        }
        if !rings::are_made() {
            break;
        }
        std::thread::yield_now();
    }
    // The one created last may have been this one.
    looks_so()
}

/// Yields to threads that create rings: this may be a signal handler that has interrupted one of
/// them.
const AWAITED: u32 = 1000;

/// Whether it is a ring, by proc(5).
fn is_ring(fd: i32) -> bool {
    let target = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new());
    target.is_ok_and(|target| target.as_bytes() == b"anon_inode:[io_uring]")
}

/// The kind of untracked ring, by the libraries that are mapped.
pub(crate) fn maker() -> RingObstacle {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    match maps.windows(LIBURING.len()).any(|part| part == LIBURING) {
        true => RingObstacle::Liburing,
        false => RingObstacle::Unseen,
    }
}

/// As in liburing.so.2.
const LIBURING: &[u8] = b"/liburing";
