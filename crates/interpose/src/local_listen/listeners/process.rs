//! Events of the whole process: it changes its user, forks, or restricts its system calls.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use super::super::WAITED_IN;
use super::super::names::{DESCRIPTORS, Kind, ON, SETS, is_on, kind_of, set_kind};
use super::super::word::Word;
use super::{Listener, RESERVE, SET_DESCRIPTORS, STATE, Waiters, close, descriptors, forget, listeners};
use crate::lock::Held;
use crate::real::kept_errno;
use crate::vfork;

/// The process is about to change its user, who cannot bind to addresses of this one's sockets.
#[cold]
pub(crate) fn changes_user(user: libc::uid_t) {
    if !is_on() || user == libc::uid_t::MAX || vfork::borrows_memory() {
        return;
    }
    // Apache's listener is blocking then: for good in prefork, which makes no set, or in event
    // until it has one.
    let waits_later = |listener: &Listener| descriptors::makes_sets() || !listener.blocks();
    kept_errno(|| {
        for (number, place) in listeners().iter_mut().enumerate() {
            let may_wait = |listener: &&mut Listener| listener.steering.is_some() && waits_later(listener);
            let Some(listener) = place.as_mut().filter(may_wait) else { continue };
            if rustix::process::geteuid().as_raw() == user {
                return;
            }
            let cpus = super::super::steering::allowed_cpus().len().min(RESERVE);
            while listener.steering.is_some() && listener.reserve.len() < cpus {
                match listener.make_sibling() {
                    Ok(sibling) => listener.reserve.push(sibling),
                    Err(word) => listener.give_up(number, word),
                }
            }
        }
    });
}

thread_local! {
    /// The process that this thread forks with [`Still`] held; 0: none.
    static FORKS: Cell<u32> = const { Cell::new(0) };
}

/// Keeps other threads from changing anything meanwhile. The program's fork handlers
/// (pthread_atfork(3)) may.
pub(crate) struct Still(#[allow(dead_code)] Held<'static>);

pub(crate) fn hold_still() -> Option<Still> {
    is_on().then(|| {
        let still = Still(STATE.lock.hold());
        FORKS.set(std::process::id());
        still
    })
}

impl Drop for Still {
    fn drop(&mut self) {
        FORKS.set(0);
    }
}

/// Whether this thread is in the middle of a fork.
pub(super) fn forks() -> bool {
    FORKS.get() != 0
}

/// Whether it is, in the child, where [`forked`] is yet to be called.
pub(super) fn is_forked() -> bool {
    forks() && FORKS.get() != std::process::id()
}

/// The process is about to restrict its system calls, after which bpf(2) and others may kill it.
pub(crate) fn confined() {
    if !is_on() {
        return;
    }
    let mut listeners = listeners();
    for (number, place) in listeners.iter_mut().enumerate() {
        if let Some(mut listener) = place.take() {
            listener.give_up(number, Word::Confined);
        }
    }
    ON.store(false, Relaxed);
}

/// In the child of a fork: siblings are the parent's.
pub(crate) fn forked() {
    if !is_on() {
        return;
    }
    STATE.lock.reset();
    FORKS.set(0);
    WAITED_IN.set(SETS);
    let mut listeners = listeners();
    for (number, listener) in listeners.iter_mut().enumerate() {
        (0..SETS).filter_map(|set| forget(set, number)).for_each(close);
        if let Some(listener) = listener {
            listener.slots.clear();
            listener.paused.drain(..).for_each(|(_, sibling)| close(sibling));
            listener.reserve.drain(..).for_each(close);
            listener.waiters = Waiters::None;
        }
    }
    SET_DESCRIPTORS.iter().for_each(|fd| fd.store(0, Relaxed));
    for fd in 0..DESCRIPTORS as c_int {
        if matches!(kind_of(fd), Kind::Set(_)) {
            set_kind(fd, Kind::Nothing);
        }
    }
}
