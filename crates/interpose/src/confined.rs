//! Processes that forbid themselves system calls: seccomp(2), mostly after they were forked for one
//! connection. What their filters allow is what they call themselves, and what else a promoted
//! connection takes would be the end of them. So they have none from then on.

use promote::Reason;

use crate::leaving;
use crate::local_listen;
use crate::mode;
use crate::promoter;
use crate::real;
use crate::sets;
use crate::start;
use crate::vfork;

/// A filter is about to be set.
pub(crate) fn before() {
    if vfork::borrows_memory() || mode::is_confined() {
        return;
    }
    real::kept_errno(|| {
        promoter::stop();
        sets::about_to_fork();
        leaving::leave_all(Reason::Confined);
        local_listen::confined();
        start::tell_now();
    });
    mode::confine();
}
