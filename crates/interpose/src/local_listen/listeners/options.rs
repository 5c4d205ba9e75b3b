//! Options of a listener that change while it has siblings.

use std::ffi::{c_int, c_void};

use libc::socklen_t;

use super::super::names::{Kind, is_on, kind_of, set_kind};
use super::super::sibling;
use super::super::word::Word;
use super::{listeners, siblings};
use crate::kernel;
use crate::real::{self, kept_errno};
use crate::vfork;

/// The program makes its listener blocking, or polls it: such waits do not cover its siblings.
pub(crate) fn polled_outside_epoll(fd: c_int) {
    let Kind::Listener(number) = kind_of(fd) else { return };
    kept_errno(|| {
        if !vfork::borrows_memory()
            && let Some(listener) = &mut listeners()[number]
            && listener.has_siblings(number)
        {
            listener.give_up(number, Word::Waits);
        }
    });
}

/// shutdown(2) of a listener succeeded: it no longer listens, and neither may its siblings.
pub(crate) fn shut_down(fd: c_int) {
    let Kind::Listener(number) = kind_of(fd) else { return };
    kept_errno(|| {
        if let Some(listener) = &mut listeners()[number] {
            listener.release_all(number);
        }
    });
}

/// accept(2) of a listener failed with EINVAL: another process may have shut it down.
#[cold]
pub(crate) fn may_be_shut_down(fd: c_int) {
    kept_errno(|| {
        if kernel::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0) {
            shut_down(fd);
        }
    });
}

/// setsockopt(2) succeeded.
///
/// # Safety
///
/// As setsockopt(2).
pub(crate) unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) {
    match kind_of(fd) {
        Kind::Nothing if is_on() && sibling::is_unique(level, name) => drop(set_kind(fd, Kind::Unique)),
        Kind::Listener(number) => {
            let mut listeners = listeners();
            let Some(listener) = &mut listeners[number] else { return };
            if sibling::is_unique(level, name) {
                return listener.give_up(number, Word::Option);
            }
            if (level, name) == (libc::SOL_SOCKET, libc::SO_REUSEPORT) {
                listener.own_group = kernel::option(fd, level, name) == Some(1);
                return;
            }
            let others = listener.reserve.iter().copied().chain(listener.paused.iter().map(|(_, fd)| *fd));
            for sibling in others.chain(siblings(number)) {
                // SAFETY: the caller's promise.
                kept_errno(|| unsafe { real::setsockopt(sibling, level, name, value, length) });
            }
        }
        _ => {}
    }
}

/// Whether an option that getsockopt(2) reports is this module's, and off for the program.
pub(crate) fn hides_option(fd: c_int, level: c_int, name: c_int) -> bool {
    let Kind::Listener(number) = kind_of(fd) else { return false };
    (level, name) == (libc::SOL_SOCKET, libc::SO_REUSEPORT)
        && listeners()[number].as_ref().is_some_and(|listener| listener.late && !listener.own_group)
}
