//! Ends a sleep in a set from another thread, so that the waiter checks all of the set again.
//!
//! A sender wakes a sleeping set once, by a byte in any of its connections, and then counts all
//! of them as woken for. Where another thread consumes that byte, or takes that connection out
//! of the set, nothing else would wake the waiter (docs/promotion.md, section 4).

use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::{IN, Inner, ONCE, Set, at, ready};
use crate::real;
use crate::sockets::Promoted;
use crate::stats::{COUNTERS, count};

/// The `epoll_data` of [`ready`]: 64 random bits, so that no program has the same.
const DATUM: u64 = 0x9d6c_5be1_47a2_f30b;

/// Removes the events of [`ready`] from what the kernel reported; returns how many are left.
pub(crate) fn without_own(events: &mut [epoll_event]) -> usize {
    let own = |event: &epoll_event| {
        let epoll_event { events, u64: data } = *event;
        data == DATUM && events == IN
    };
    let Some(place) = events.iter().position(own) else { return events.len() };
    events.copy_within(place + 1.., place);
    events.len() - 1
}

impl Set {
    /// Makes the thread that sleeps in the set, or the next one that waits there, check all of it
    /// again.
    #[cold]
    pub(crate) fn wake_waiter(&self) {
        count(&COUNTERS.rechecks, 1);
        self.was_woken.store(true, Ordering::Relaxed);
        if !self.watch(libc::EPOLL_CTL_MOD, IN | ONCE) {
            // It is not registered yet, or has another number now.
            self.watch(libc::EPOLL_CTL_ADD, IN | ONCE);
        }
    }

    fn watch(&self, operation: i32, events: u32) -> bool {
        let mut event = epoll_event { events, u64: DATUM };
        let (epfd, fd) = (self.epfd.load(Ordering::Relaxed), ready::number());
        // SAFETY: an event to read.
        real::kept_errno(|| unsafe { real::epoll_ctl(epfd, operation, fd, &raw mut event) == 0 })
    }

    /// As [`Self::wake_waiter`], if a thread sleeps by the set's waiter, for which senders send
    /// one wake-up for all connections.
    #[inline]
    pub(crate) fn wake_if_asleep(&self) {
        if self.is_numbered.load(Ordering::SeqCst) {
            self.wake_waiter();
        }
    }
}

impl Inner {
    /// Registers [`ready`], before any connection is hot. If the kernel has no memory for that,
    /// each connection is armed separately.
    pub(super) fn prepare_wake_up(&mut self) {
        let set = at(self.number);
        if !self.is_wakeable && !self.several_waiters {
            self.is_wakeable = set.watch(libc::EPOLL_CTL_ADD, ONCE) || set.watch(libc::EPOLL_CTL_MOD, ONCE);
            // The list is still empty.
            self.several_waiters = !self.is_wakeable;
        }
    }
}

impl Promoted {
    /// `count` bytes were read from the kernel. The wake-up for all connections of the set may have
    /// been among them.
    #[inline]
    pub(crate) fn consumed_from_kernel(&mut self, count: usize) {
        self.connection.kernel_delivered(count);
        if self.listed_in != 0 {
            at(self.listed_in - 1).wake_if_asleep();
        }
    }
}
