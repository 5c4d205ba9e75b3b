//! dup2(2) onto a number that the library has, or is about to have.

use std::ffi::c_int;

use super::{INSIDE, hidden, hold, is_hidden, withdrawals};
use crate::kernel::is_open;
use crate::mode;
use crate::real;
use crate::sets;

/// Makes `call`, a dup2(2) of `fd` onto `new`. The library's own descriptor is moved first, and no
/// thread opens one meanwhile.
pub(crate) fn replacing(fd: c_int, new: c_int, call: impl Fn() -> c_int) -> c_int {
    // The handler of a fault may run in the middle of the promoter's work.
    if INSIDE.get() || !(mode::promotes() || is_hidden(new)) {
        return call();
    }
    let status = hold::with_hold(|promoter| {
        let is_hidden = is_hidden(new);
        // The call closes a file of the program's, which may take long.
        if !is_hidden && is_open(new) {
            return None;
        }
        INSIDE.set(true);
        if is_hidden && is_open(fd) {
            match promoter {
                Some(promoter) if hidden() == Some(new) => promoter.disconnect(),
                _ => sets::vacate_number(),
            }
        }
        let status = call();
        INSIDE.set(false);
        Some(status)
    });
    if status.is_some() {
        real::kept_errno(withdrawals::promoter_is_free);
    } else if is_hidden(new) {
        // dup2(2) documents EBUSY for a race with open(2).
        real::set_errno(libc::EBUSY);
        return -1;
    }
    status.flatten().unwrap_or_else(call)
}
