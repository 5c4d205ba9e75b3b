//! Who waits for a promoted connection, as far as was seen. While only calls of ours do, one thread at a time, the other
//! end need not ring between two waits: each looks at the ring, and asks to be rung before it sleeps. The first doubt
//! ends that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ring::WakeUp;
use ring::layout::NO_SLEEPER;

use crate::sockets::{Promoted, Socket, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiters {
    /// Nobody was seen to wait, or somebody may whom the library does not see. So many reads that block found their bytes.
    Unseen(u8),
    /// A call of ours waited last.
    Calls,
    /// And a read has found nothing since: what the program waits with next is not known yet.
    Told,
}

/// Reads that block and find their bytes, of which nobody had told the program, after which they count as its way to wait.
/// Where both ends share a core each read finds them: its answer wakes a peer that asks again at once.
const READS: u8 = 64;

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters::Unseen(0)
    }
}

impl Waiters {
    /// A read that would wait begins.
    fn read_by_waiting(&mut self) {
        *self = match *self {
            Waiters::Unseen(reads) if reads < READS => Waiters::Unseen(reads + 1),
            Waiters::Unseen(_) => Waiters::Calls,
            seen => seen,
        };
    }

    /// A call of ours waits for it.
    fn wait(&mut self) {
        *self = Waiters::Calls;
    }

    /// A call that does not wait found nothing.
    fn are_told(&mut self) {
        if *self == Waiters::Calls {
            *self = Waiters::Told;
        }
    }

    /// Bytes were taken. Where no wait of ours explains how the program knew of them, it waits in a way of its own.
    fn took(&mut self) {
        if *self == Waiters::Told {
            *self = Waiters::default();
        }
    }

    pub(crate) fn are_seen(self) -> bool {
        !matches!(self, Waiters::Unseen(_))
    }
}

/// MEGAPIPE_ARM=always: nothing is concluded from what was seen.
static ARMS_ALWAYS: AtomicBool = AtomicBool::new(false);

pub(crate) fn arm_always(always: bool) {
    ARMS_ALWAYS.store(always, Relaxed);
}

/// FIONBIO and F_SETFL: what the program asked for.
pub(crate) fn nonblocking(socket: &Socket, on: bool) {
    let changed = socket.nonblocking.swap(on, Relaxed) != on;
    if changed
        && socket.state() == State::Promoted
        && let Some(promoted) = socket.lock().promoted.as_deref_mut()
    {
        promoted.waits_anew();
    }
}

impl Promoted {
    /// A call of ours waits for it, which looks before it sleeps.
    pub(crate) fn is_awaited_here(&mut self) {
        self.waiters.wait();
        self.connection.rings_each(false);
    }

    /// A read that blocks begins, of whose bytes nobody has told the program.
    pub(crate) fn is_read_by_waiting(&mut self) {
        self.waiters.read_by_waiting();
    }

    /// Bytes were read.
    pub(crate) fn was_read(&mut self) {
        self.waiters.took();
    }

    /// Nothing is here, and the program was told so. True: something is, by now.
    pub(crate) fn rest(&mut self, in_a_set: bool) -> Result<bool, i32> {
        let rests = self.is_hot() || self.will_hear() || (!in_a_set && self.stays_awake());
        self.waiters.are_told();
        if rests { Ok(false) } else { self.arm() }
    }

    /// The program may wait in another way from now on, where nobody sees it.
    pub(crate) fn waits_anew(&mut self) {
        self.waiters = Waiters::default();
        let asks_who_waits = self.armed && !self.is_armed_by_doorbell();
        if self.listed_in == 0 && !asks_who_waits && self.arm().unwrap_or(true) {
            // What is here it reads first; a bell comes for what follows.
            self.stale = false;
            self.armed = !self.connection.arm_for_more(WakeUp::Tcp).unwrap_or(true);
        }
    }

    /// Whether this end, of no set, goes without asking to be rung until the next wait.
    pub(crate) fn stays_awake(&self) -> bool {
        !self.armed && self.may_stay_awake()
    }

    /// Whether it may do so.
    pub(crate) fn may_stay_awake(&self) -> bool {
        self.waiters.are_seen()
            && !ARMS_ALWAYS.load(Relaxed)
            && self.listed_in == 0
            && self.sleeper == NO_SLEEPER
            && self.has_one_waiter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_no_wait_explains_are_a_doubt() {
        let mut waiters = Waiters::default();
        waiters.are_told();
        assert!(!waiters.are_seen());
        waiters.wait();
        for _ in 0..3 {
            // As a blocking call does, and one that asks before it polls.
            waiters.took();
            waiters.are_told();
            waiters.wait();
            waiters.took();
            assert!(waiters.are_seen());
        }
        waiters.are_told();
        assert!(waiters.are_seen());
        waiters.took();
        assert!(!waiters.are_seen());
        waiters.are_told();
        waiters.took();
        assert!(!waiters.are_seen());
    }

    #[test]
    fn reads_that_always_find_bytes_are_a_way_to_wait() {
        let mut waiters = Waiters::default();
        for _ in 0..READS {
            waiters.read_by_waiting();
            assert!(!waiters.are_seen());
            waiters.took();
        }
        waiters.read_by_waiting();
        assert!(waiters.are_seen());
    }
}
