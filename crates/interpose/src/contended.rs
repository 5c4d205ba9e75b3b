//! Several threads that wait for one socket: by poll(2), by a read that blocks, or one of them in
//! an epoll set. As on TCP each is woken for what comes, unless another consumed it. The same of
//! processes that were forked from one another.

use crate::pages;
use crate::sockets::Promoted;
use crate::stats::{COUNTERS, count};
use crate::threads;

impl Promoted {
    /// This thread uses it, and does not sleep on it any more.
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
            // Before anything of what may wake that thread is taken.
            self.wakes_for_each();
        }
    }

    /// From here on each publication has a wake-up, which stays until its bytes were consumed.
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

    /// Whether what lies in the kernel may be what wakes a set of the process that this one was forked from:
    /// until that has woken it stays there.
    #[inline]
    pub(crate) fn owes_bells(&mut self) -> bool {
        if let Some((sleeper, _)) = self.owes
            && pages::asleep_before(sleeper) != self.owes
        {
            self.owes = None;
        }
        self.owes.is_some()
    }

    /// This thread is about to sleep on it, which no other thread may miss.
    #[inline]
    pub(crate) fn is_slept_on(&mut self) {
        self.is_used();
        if !threads::is_alone() {
            self.slept_by = threads::own();
        }
    }
}
