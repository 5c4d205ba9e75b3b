//! Descriptors of listeners, of epoll sets and of this module's own, as the program closes and duplicates them.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use super::super::word::Word;
use super::super::{DESCRIPTORS, What, set_what, what};
use super::{SET_DESCRIPTORS, listeners};
use crate::fork;
use crate::real::kept_errno;

/// `fd` is about to be closed.
#[cold]
fn close_known(fd: c_int) {
    if fork::borrows_memory() {
        return;
    }
    let mut listeners = listeners();
    match what(fd) {
        What::Listener(number) => {
            set_what(fd, What::Nothing);
            let Some(listener) = &mut listeners[number] else { return };
            listener.names -= 1;
            if listener.names == 0 {
                listener.release_all(number);
                listeners[number] = None;
            } else if listener.fd == fd {
                let other = (0..DESCRIPTORS as c_int).find(|other| what(*other) == What::Listener(number));
                listener.fd = other.unwrap_or(-1);
            }
        }
        What::Set(set) => {
            set_what(fd, What::Nothing);
            for (number, listener) in listeners.iter_mut().enumerate() {
                if let Some(listener) = listener {
                    listener.release(number, set);
                }
            }
            SET_DESCRIPTORS[set].store(0, Relaxed);
        }
        What::Unique => drop(set_what(fd, What::Nothing)),
        What::Nothing | What::Own => {}
    }
}

/// `fd` is about to be closed. True: it is the library's own, and the program means something else.
#[inline]
pub(crate) fn closing(fd: c_int) -> bool {
    match what(fd) {
        What::Nothing => false,
        What::Own => !fork::borrows_memory(),
        What::Listener(_) | What::Set(_) | What::Unique => {
            kept_errno(|| close_known(fd));
            false
        }
    }
}

/// All from `first` to `last` are about to be closed, but for those that it returns, which are the library's own.
pub(crate) fn closing_range(first: c_int, last: c_int) -> impl Iterator<Item = c_int> {
    (first..=last.min(DESCRIPTORS as c_int - 1)).filter(|fd| closing(*fd))
}

/// The program puts a file of its own at a number of the library's.
#[cold]
pub(crate) fn leave_number(fd: c_int) {
    if fork::borrows_memory() {
        return;
    }
    for (number, listener) in listeners().iter_mut().enumerate() {
        if let Some(listener) = listener.as_mut().filter(|listener| listener.uses(number, fd)) {
            listener.give_up(number, Word::Descriptors);
        }
    }
}

/// `new` is the same open file as `fd`.
pub(crate) fn duplicated(fd: c_int, new: c_int) {
    if fd == new || fork::borrows_memory() {
        return;
    }
    let What::Listener(number) = what(fd) else { return };
    let mut listeners = listeners();
    let Some(listener) = &mut listeners[number] else { return };
    if set_what(new, What::Listener(number)) {
        listener.names += 1;
    } else {
        // An accept by that name would find the shared queue only.
        listener.give_up(number, Word::Descriptors);
    }
}
