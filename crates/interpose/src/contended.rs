//! Several waiters on one socket: threads in poll(2), in blocking reads, or one of them in an epoll
//! set. As on TCP, each is woken for new bytes unless another consumed them. The same holds for
//! processes forked from one another.

use crate::pages;
use crate::sockets::Promoted;
use crate::stats::{COUNTERS, count};
use crate::threads;

impl Promoted {
    /// This thread uses it, and no longer sleeps on it.
    #[inline(always)]
    pub(crate) fn is_used(&mut self) {
        if self.slept_by != 0 {
            self.is_used_beside();
        }
    }

    #[cold]
    fn is_used_beside(&mut self) {
        if self.slept_by == threads::own() {
            self.slept_by = 0;
        } else {
            // Before any byte is consumed that may have to wake that thread.
            self.wakes_for_each();
        }
    }

    /// From here on each publication has a wake-up, which stays in the kernel until its bytes are
    /// consumed.
    #[cold]
    pub(crate) fn wakes_for_each(&mut self) {
        if !self.contended {
            count(&COUNTERS.contended, 1);
            self.contended = true;
            self.shown_in_kernel = true;
            self.connection.stay_armed(true);
            self.armed = true;
            self.stale = false;
        }
    }

    /// Whether a byte in the kernel may be the wake-up of a set of the parent process: it stays
    /// there until that set is awake.
    #[inline]
    pub(crate) fn owes_bells(&mut self) -> bool {
        if let Some((sleeper, _)) = self.owes
            && pages::asleep_before(sleeper) != self.owes
        {
            self.owes = None;
        }
        self.owes.is_some()
    }

    /// This thread is about to sleep on it, and other threads have to see that.
    #[inline]
    pub(crate) fn is_slept_on(&mut self) {
        self.is_used();
        if !threads::is_alone() {
            self.slept_by = threads::own();
        }
    }
}
