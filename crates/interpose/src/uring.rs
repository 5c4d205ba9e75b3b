//! io_uring, by which a program reads and writes past libc: in a program that has one nothing
//! is promoted.
//!
//! A ring that comes later is seen where it is made by syscall(2), as libuv and Rust's
//! `io-uring` do; liburing has system calls of its own, and only what it made before the first
//! connection is offered is found.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use promote::Reason;
use rustix::fs::{Dir, Mode, OFlags};

use crate::leaving;
use crate::sockets::State;
use crate::table;

static HERE: AtomicBool = AtomicBool::new(false);

/// Whether this process has a ring, as far as was seen.
pub(crate) fn is_here() -> bool {
    HERE.load(Ordering::Relaxed)
}

/// The program made a ring.
pub(crate) fn was_made() {
    if HERE.swap(true, Ordering::Relaxed) {
        return;
    }
    let ours = |fd: &i32| {
        table::socket(*fd).is_some_and(|socket| matches!(socket.state(), State::Promoted | State::Offered))
    };
    (0..table::end()).filter(ours).for_each(|fd| leaving::leave_for(fd, Reason::IoUring));
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
