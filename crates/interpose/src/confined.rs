//! Processes that forbid themselves system calls: seccomp(2), mostly after they were forked for one
//! connection. What their filters allow is what they call themselves, and what else a promoted
//! connection takes would be the end of them. So they have none from then on.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fork;
use crate::leaving;
use crate::local_listen;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::start;

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether nothing but the program's own calls may be made.
#[inline]
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// A filter is about to be set.
pub(crate) fn before() {
    if fork::borrows_memory() || is_confined() {
        return;
    }
    real::kept_errno(|| {
        promoter::stop();
        sets::about_to_fork();
        leaving::leave_all();
        if local_listen::is_on() {
            local_listen::confined();
        }
        start::tell_now();
    });
    CONFINED.store(true, Ordering::Relaxed);
}
