//! Calls that install signal handlers.

use libc::sighandler_t;

use super::*;
use crate::signals;

pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !signals::has_begun() {
        let status = real::sigaction(signal, new, old);
        if status == 0 && !new.is_null() && signals::has_begun() && !vfork::borrows_memory() {
            let was = old.as_ref().map_or(libc::SIG_DFL, |old| old.sa_sigaction);
            let was = signals::installed_late(signal, was);
            if let Some(old) = old.as_mut() {
                old.sa_sigaction = was;
            }
        }
        return status;
    }
    let mut was: libc::sigaction = std::mem::zeroed();
    let status = if new.is_null() {
        real::sigaction(signal, new, &raw mut was)
    } else {
        let mut action = new.read();
        let keeps = action.sa_flags & libc::SA_RESETHAND == 0 && !vfork::borrows_memory();
        let handler = action.sa_sigaction;
        let mut status = -1;
        // `new` and `old` may be the same address.
        was.sa_sigaction = signals::install(signal, handler, keeps, |handler| {
            action.sa_sigaction = handler;
            status = real::sigaction(signal, &raw const action, &raw mut was);
            if status == 0 { was.sa_sigaction } else { libc::SIG_ERR }
        });
        status
    };
    if status == 0 && !old.is_null() {
        if new.is_null() {
            was.sa_sigaction = signals::as_installed(signal, was.sa_sigaction);
        }
        signals::without_guard(signal, &mut was);
        old.write(was);
    }
    status
}

/// The variants of signal(2), of which `call` is one.
fn set_handler(
    signal: c_int,
    handler: sighandler_t,
    keeps: bool,
    call: impl FnOnce(sighandler_t) -> sighandler_t,
) -> sighandler_t {
    let keeps = keeps && signals::has_begun() && !vfork::borrows_memory();
    signals::install(signal, handler, keeps, call)
}

pub unsafe fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, true, |handler| real::signal(signal, handler))
}

/// The handler is used once.
pub unsafe fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    set_handler(signal, handler, false, |handler| real::sysv_signal(signal, handler))
}

/// SIG_HOLD is no handler.
pub unsafe fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t {
    set_handler(signal, disposition, false, |handler| real::sigset(signal, handler))
}
