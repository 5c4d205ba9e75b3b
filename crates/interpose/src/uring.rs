//! io_uring, by which a program reads and writes past libc.
//!
//! A ring that is made and entered through syscall(2), as libuv and Rust's `io-uring` do, is followed: its submissions are
//! read before the kernel has them ([`rings`]; what they mean for sockets is in `calls`). In a process with any other
//! nothing is promoted. liburing has system calls of its own; only what it made before the first connection is offered
//! is found.

use std::sync::atomic::{AtomicBool, Ordering};

use promote::summary::RingObstacle;
use rustix::fs::{Dir, Mode, OFlags};

use crate::stats;
use crate::table::{self, Entry};

pub(crate) mod rings;

static UNSEEN: AtomicBool = AtomicBool::new(false);
static TRUSTED: AtomicBool = AtomicBool::new(false);
/// What was promoted went back to TCP.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether the user says that rings which nobody sees being entered touch no sockets. Bytes that went past the library on
/// any connection are the proof that this is not so.
pub(crate) fn trusts(trusted: bool) {
    TRUSTED.store(trusted, Ordering::Relaxed);
}

/// Whether this process has a ring whose submissions nobody sees, and which may touch sockets.
pub(crate) fn is_unseen() -> bool {
    UNSEEN.load(Ordering::Relaxed) && !TRUSTED.load(Ordering::Relaxed)
}

/// It has one from here on. True, once: what is promoted has to go back to TCP.
pub(crate) fn becomes_unseen(obstacle: RingObstacle) -> bool {
    stats::met_ring(obstacle);
    UNSEEN.store(true, Ordering::Relaxed);
    is_unseen() && !LEFT.swap(true, Ordering::Relaxed)
}

/// As if there had been none: for a fuzzer, each of whose scripts may end promotion.
#[cfg(fuzzing)]
pub fn forget() {
    UNSEEN.store(false, Ordering::Relaxed);
    LEFT.store(false, Ordering::Relaxed);
}

/// Looks for one among the descriptors, before anything is promoted.
pub(crate) fn look() {
    if found().unwrap_or(false) {
        stats::met_ring(maker());
        UNSEEN.store(true, Ordering::Relaxed);
    }
}

fn found() -> rustix::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let fd = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if fd.is_some_and(is_unfollowed) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether it is a ring whose submissions are not read. One that another thread is making, or closing, is none.
pub(crate) fn is_unfollowed(fd: i32) -> bool {
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
    // The last that was made may have been this one.
    looks_so()
}

/// Yields to threads that make rings: this one may be a signal handler that has interrupted one of them.
const AWAITED: u32 = 1000;

/// Whether it is a ring, as proc(5) has it.
fn is_ring(fd: i32) -> bool {
    let target = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new());
    target.is_ok_and(|target| target.as_bytes() == b"anon_inode:[io_uring]")
}

/// What enters rings unseen, by the libraries that are mapped.
pub(crate) fn maker() -> RingObstacle {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    match maps.windows(LIBURING.len()).any(|part| part == LIBURING) {
        true => RingObstacle::Liburing,
        false => RingObstacle::Unseen,
    }
}

/// As in liburing.so.2.
const LIBURING: &[u8] = b"/liburing";
