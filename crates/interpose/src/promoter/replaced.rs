//! dup2(2) onto a number that the library has, or is about to have.

use std::ffi::c_int;

use super::{INSIDE, Promoter, hold, withdrawals};
use crate::hidden;
use crate::kernel::is_open;
use crate::mode;
use crate::real;

/// Makes `call`, a dup2(2) of `fd` onto `new`. The library's own descriptor is moved first, by
/// `vacate`, and no thread opens one meanwhile.
#[allow(unsafe_code)] // close(2)
pub(crate) fn replacing(fd: c_int, new: c_int, vacate: impl Fn() -> bool, call: impl Fn() -> c_int) -> c_int {
    // The handler of a fault may run in the middle of the promoter's work.
    let is_inside = INSIDE.get();
    if (is_inside || !mode::promotes()) && !hidden::contains(new) {
        return call();
    }
    let forks = hold::forks();
    let replace = |promoter: &mut Option<Promoter>| {
        let is_hidden = hidden::contains(new);
        // The call closes a file of the program's, which may take long.
        if !is_hidden && is_open(new) {
            return None;
        }
        INSIDE.set(true);
        let moves = || if forks { hidden::moves(new) } else { vacate() };
        let is_moved = is_hidden && is_open(fd) && moves();
        promoter.iter().for_each(Promoter::note_number);
        let status = call();
        if is_moved && status < 0 {
            // Beyond the program's limit. SAFETY: our own file, which has another number by now.
            real::kept_errno(|| unsafe { real::close(new) });
        }
        INSIDE.set(false);
        Some(status)
    };
    let status = if is_inside { None } else { hold::with_hold(replace) };
    if status.is_some() {
        real::kept_errno(withdrawals::promoter_is_free);
    } else if hidden::contains(new) {
        // dup2(2) documents EBUSY for a race with open(2).
        real::set_errno(libc::EBUSY);
        return -1;
    }
    status.flatten().unwrap_or_else(call)
}
