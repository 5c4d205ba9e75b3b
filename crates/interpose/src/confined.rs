//! Processes that restrict their system calls by seccomp(2), mostly after a fork for one
//! connection. Their filters allow what the program calls itself; other calls, which promoted
//! connections make, would kill it. So all connections are demoted, and none is promoted from then
//! on.

use promote::Reason;

use crate::demotion;
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
        demotion::demote_all(Reason::Confined);
        local_listen::confined();
        start::write_summary_now();
    });
    mode::confine();
}
