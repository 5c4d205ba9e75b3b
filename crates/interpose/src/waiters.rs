//! The waiters of a promoted connection, as far as they are seen. While only calls of ours wait,
//! one thread at a time, the peer sends no wake-ups between two waits: each wait polls the ring,
//! and arms before it sleeps. The first doubt ends that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ring::WakeUp;
use ring::layout::NO_WAITER;

use crate::sockets::{Promoted, Socket, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiters {
    /// No wait was seen, or the program may wait outside the library. Counts the blocking reads
    /// that found their bytes, and the polls of a busy loop that did.
    Unseen(u8),
    /// The last wait was a call of ours.
    Calls,
    /// A read has found nothing since: how the program will wait next is not known yet.
    FoundNothing,
}

/// Blocking reads, of bytes that nothing had reported to the program, after which such reads count
/// as its way to wait. If both endpoints share a core each read finds its bytes: its answer wakes a
/// peer that asks again at once. So do calls of poll(2) that never wait, as Open MPI makes.
const READS: u8 = 64;

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters::Unseen(0)
    }
}

impl Waiters {
    /// A read begins that would block.
    fn blocking_read(&mut self) {
        *self = match *self {
            Waiters::Unseen(reads) if reads < READS => Waiters::Unseen(reads + 1),
            Waiters::Unseen(_) => Waiters::Calls,
            seen => seen,
        };
    }

    /// A poll in a busy loop found bytes.
    fn busy_poll(&mut self) {
        match self {
            Waiters::FoundNothing => self.wait(),
            _ => self.blocking_read(),
        }
    }

    /// A call of ours waits.
    fn wait(&mut self) {
        *self = Waiters::Calls;
    }

    /// A nonblocking call found nothing.
    fn found_nothing(&mut self) {
        if *self == Waiters::Calls {
            *self = Waiters::FoundNothing;
        }
    }

    /// Bytes were consumed. If no wait of ours explains how the program found them, it waits in a
    /// way of its own.
    fn consumed(&mut self) {
        if *self == Waiters::FoundNothing {
            *self = Waiters::default();
        }
    }

    pub(crate) fn are_seen(self) -> bool {
        !matches!(self, Waiters::Unseen(_))
    }
}

/// MEGAPIPE_ARM=always: always arm.
static ARMS_ALWAYS: AtomicBool = AtomicBool::new(false);

pub(crate) fn arm_always(always: bool) {
    ARMS_ALWAYS.store(always, Relaxed);
}

/// FIONBIO and F_SETFL: what the program set.
pub(crate) fn nonblocking(socket: &Socket, on: bool) {
    let changed = socket.nonblocking.swap(on, Relaxed) != on;
    if changed
        && socket.state() == State::Promoted
        && let Some(promoted) = socket.lock().promoted.as_deref_mut()
    {
        promoted.forget_waiters();
    }
}

impl Promoted {
    /// A call of ours waits for it, and polls before it sleeps.
    pub(crate) fn note_wait(&mut self) {
        self.waiters.wait();
        self.connection.requests_each(false);
    }

    /// A blocking read begins, and nothing has reported its bytes to the program.
    pub(crate) fn note_blocking_read(&mut self) {
        self.waiters.blocking_read();
    }

    /// A poll in a busy loop reported it.
    pub(crate) fn note_busy_poll(&mut self) {
        self.waiters.busy_poll();
    }

    /// Bytes were read.
    pub(crate) fn note_read(&mut self) {
        self.waiters.consumed();
    }

    /// A call returned EAGAIN. True: bytes are here by now.
    pub(crate) fn arm_unless_covered(&mut self, in_a_set: bool) -> Result<bool, i32> {
        let is_covered =
            self.is_hot() || self.kernel_reports_arrivals() || (!in_a_set && self.stays_unarmed());
        self.waiters.found_nothing();
        if is_covered { Ok(false) } else { self.arm() }
    }

    /// The program may wait outside the library from now on.
    pub(crate) fn forget_waiters(&mut self) {
        self.waiters = Waiters::default();
        let armed_for_any = self.watch.is_armed() && !self.is_armed_by_doorbell();
        if self.listed_in == 0 && !armed_for_any && self.arm().unwrap_or(true) {
            // The program reads the bytes that are here first; a wake-up comes for later ones.
            let _ = self.arm_for_more(WakeUp::Tcp);
        }
    }

    /// Whether this endpoint, in no set, stays unarmed until the next wait.
    pub(crate) fn stays_unarmed(&self) -> bool {
        !self.watch.is_armed() && self.may_stay_unarmed()
    }

    /// Whether it may stay unarmed.
    pub(crate) fn may_stay_unarmed(&self) -> bool {
        self.waiters.are_seen()
            && !ARMS_ALWAYS.load(Relaxed)
            && self.listed_in == 0
            && self.waiter == NO_WAITER
            && self.has_one_waiter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_no_wait_explains_are_a_doubt() {
        let mut waiters = Waiters::default();
        waiters.found_nothing();
        assert!(!waiters.are_seen());
        waiters.wait();
        for _ in 0..3 {
            // A blocking call does this, and so does a read before a poll(2).
            waiters.consumed();
            waiters.found_nothing();
            waiters.wait();
            waiters.consumed();
            assert!(waiters.are_seen());
        }
        waiters.found_nothing();
        assert!(waiters.are_seen());
        waiters.consumed();
        assert!(!waiters.are_seen());
        waiters.found_nothing();
        waiters.consumed();
        assert!(!waiters.are_seen());
    }

    #[test]
    fn reads_that_always_find_bytes_are_a_way_to_wait() {
        let mut waiters = Waiters::default();
        for _ in 0..READS {
            waiters.blocking_read();
            assert!(!waiters.are_seen());
            waiters.consumed();
        }
        waiters.blocking_read();
        assert!(waiters.are_seen());
    }

    #[test]
    fn a_busy_loop_is_a_way_to_wait() {
        let mut waiters = Waiters::default();
        for _ in 0..READS {
            waiters.busy_poll();
            assert!(!waiters.are_seen());
            waiters.consumed();
        }
        for _ in 0..3 {
            waiters.busy_poll();
            waiters.consumed();
            assert!(waiters.are_seen());
            // It reads until nothing is left.
            waiters.found_nothing();
        }
        // No poll explains these bytes.
        waiters.consumed();
        assert!(!waiters.are_seen());
    }
}
