//! Processes that share descriptors, or even memory, with their parent.
#![allow(unsafe_code)] // fork(2) itself

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::family;
use crate::local_listen;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::signals;
use crate::sockets::{self, State};
use crate::spin;
use crate::start;

/// The process whose descriptors the table knows, once it lends its memory; 0: it has not.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Another process may have this one's memory; also until the table knows any.
static LENDS: AtomicBool = AtomicBool::new(true);

/// This process has its memory for itself.
pub(crate) fn owns_memory() {
    LENDS.store(false, Ordering::Relaxed);
}

/// A child is about to be made that has this process's memory: from here on who runs is asked of
/// the kernel, for good.
pub(crate) fn lends_memory() {
    if !LENDS.load(Ordering::Relaxed) {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        // Who sees this sees the owner.
        LENDS.store(true, Ordering::Release);
    }
}

/// Whether this is the child of a vfork(2): it has descriptors of its own, and its parent's
/// memory. What it does to its descriptors until it executes a program is its own business.
/// Asked only where an entry would change: getpid(2) is one of the calls that short connections feel.
pub(crate) fn borrows_memory() -> bool {
    LENDS.load(Ordering::Acquire) && {
        let owner = OWNER.load(Ordering::Relaxed);
        owner == 0 || owner != std::process::id()
    }
}

/// The child of a vfork(2) has put another file at the number of a socket of this process's, and may use it
/// until it executes a program, or ends.
static DIVERGES: AtomicBool = AtomicBool::new(false);

/// This process, the child of a vfork(2), changes what lies at a number.
pub(crate) fn diverges() {
    DIVERGES.store(true, Ordering::Relaxed);
}

/// It executes a program, or ends.
pub(crate) fn diverges_no_more() {
    if DIVERGES.load(Ordering::Relaxed) && borrows_memory() {
        DIVERGES.store(false, Ordering::Relaxed);
    }
}

/// Whether numbers mean something else here than the table says.
#[inline(always)]
pub(crate) fn is_elsewhere() -> bool {
    DIVERGES.load(Ordering::Relaxed) && borrows_memory()
}

/// fork(2), which `call` does; a child that does not return from it calls [`in_child`] first.
pub(crate) fn fork(call: impl FnOnce() -> libc::pid_t) -> libc::pid_t {
    if borrows_memory() {
        return call();
    }
    promoter::hold_still();
    sets::about_to_fork();
    let (mut held, mut counted) = (Vec::new(), Vec::new());
    for (_, socket) in sockets::all() {
        match socket.state() {
            State::Free => continue,
            State::Promoted => {
                let mut inner = socket.lock();
                // It may have gone back to TCP meanwhile.
                let promoted = inner.promoted.as_deref_mut();
                let shared = promoted.map(|promoted| promoted.connection.share(std::process::id())).is_some();
                held.push(inner);
                if shared {
                    continue;
                }
            }
            State::Plain | State::Kernel | State::Offered => {}
        }
        socket.holders.fork();
        counted.push(socket);
    }
    let listeners = local_listen::is_on().then(local_listen::hold_still);
    let process = call();
    let errno = real::errno();
    drop(listeners);
    if process < 0 {
        counted.iter().for_each(|socket| socket.holders.give_up());
        for inner in &mut held {
            if let Some(promoted) = inner.promoted.as_deref_mut() {
                promoted.connection.unshare();
            }
        }
    }
    drop(held);
    promoter::move_on();
    if process == 0 {
        in_child();
    }
    real::set_errno(errno);
    process
}

/// In the child of a fork: from here on it is a process of its own.
pub(crate) fn in_child() {
    owns_memory();
    promoter::move_on();
    signals::forked();
    sockets::reset_locks();
    sockets::inherit();
    sets::forked();
    promoter::forked();
    family::forked();
    spin::forked();
    start::forked();
    if local_listen::is_on() {
        local_listen::forked();
    }
}
