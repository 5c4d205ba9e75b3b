//! Several waiters on one socket: threads in poll(2), in blocking reads, or one of them in an epoll
//! set. As on TCP, each is woken for new bytes unless another consumed them. The same holds for
//! processes forked from one another.

use crate::pages;
use crate::sockets::Promoted;
use crate::stats::{COUNTERS, count};
use crate::threads;
use crate::watch::Watch;

impl Promoted {
    /// This thread uses it, and no longer sleeps on it.
    #[inline(always)]
    pub(crate) fn note_use(&mut self) {
        if self.slept_by != 0 {
            self.note_concurrent_use();
        }
    }

    #[cold]
    fn note_concurrent_use(&mut self) {
        if self.slept_by == threads::own() {
            self.slept_by = 0;
        } else {
            // Before any byte is consumed that may have to wake that thread.
            self.wake_for_each();
        }
    }

    /// From here on each publication has a wake-up, which stays in the kernel until its bytes are
    /// consumed.
    #[cold]
    pub(crate) fn wake_for_each(&mut self) {
        if !self.several_waiters {
            count(&COUNTERS.contended, 1);
            self.several_waiters = true;
            self.shown_in_kernel = true;
            self.connection.stay_armed(true);
            self.watch = Watch::Armed;
        }
    }

    /// Whether a byte in the kernel may be the wake-up of a set of the parent process: it stays
    /// there until that set is awake.
    #[inline]
    pub(crate) fn keeps_wake_ups(&mut self) -> bool {
        if let Some((waiter, _)) = self.parent_sleep
            && pages::asleep_before(waiter) != self.parent_sleep
        {
            self.parent_sleep = None;
        }
        self.parent_sleep.is_some()
    }

    /// This thread is about to sleep on it, and other threads have to see that.
    #[inline]
    pub(crate) fn note_sleep(&mut self) {
        self.note_use();
        if !threads::is_alone() {
            self.slept_by = threads::own();
        }
    }
}
