//! How a call waits: it collects what is here, spins on the rings for as long as that pays, arms
//! the connections and sleeps, until one deadline. read(2), poll(2) and epoll_wait(2) differ in how
//! they collect, sleep and report.

use std::ops::ControlFlow::{self, Break, Continue};

use crate::clock::{self, Instant};
use crate::signals;
use crate::spin::{Sleep, Wait};

/// A call that waits.
pub(crate) trait Waiting {
    /// The result of the call.
    type Outcome;

    /// Collects from the rings, and from the kernel if that is due; otherwise returns the next
    /// phase.
    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<Self::Outcome, Phase>;

    /// The call polls its rings from here on, and peers need not wake this thread.
    fn begin_spin(&mut self);

    /// Checks the rings once, without the kernel. False: nothing is there.
    fn poll_rings(&mut self) -> bool;

    /// Arms the connections, so that peers wake this thread.
    fn arm(&mut self) -> ControlFlow<Self::Outcome, Armed>;

    /// Sleeps until something comes, or until this time, and disarms.
    fn sleep(&mut self, until: Option<Instant>) -> Slept<Self::Outcome>;

    /// Whether the call continues after a handler with SA_RESTART (signal(7)).
    fn restarts(&self) -> bool {
        false
    }

    /// Nothing came until the deadline.
    fn timed_out(&mut self) -> Self::Outcome;

    /// A handler ended the call before it slept.
    fn interrupted(&mut self) -> Self::Outcome;

    /// Whether the outcome is what was waited for.
    fn is_found(outcome: &Self::Outcome) -> bool;

    /// Whether it came from a ring: for calls whose [`Self::poll_rings`] cannot say.
    fn found_in_rings(&self) -> bool {
        true
    }
}

/// The next step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Collect,
    Spin,
    Sleep,
}

/// The result of arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// Something is here.
    Pending,
    /// Nothing is here. `unseen`: when the next peer that may wait [unseen](crate::unseen) is due
    /// for a wake-up.
    Asleep { unseen: Option<Instant> },
}

/// A sleep that has ended.
pub(crate) struct Slept<Outcome> {
    pub(crate) at: Instant,
    /// When the peer sent the wake-up that ended it, in nanoseconds; 0: not known.
    pub(crate) peer_woke_at: u64,
    pub(crate) outcome: ControlFlow<Outcome>,
}

/// The state of one wait.
pub(crate) struct Waiter {
    deadline: Option<Instant>,
    /// Handlers that had run in this thread before.
    handled: u32,
    spin: Option<Wait>,
    /// The last spin has found something, and did not end to ask the kernel.
    spin_found: bool,
}

impl Waiter {
    /// Waits until `deadline`; `None`: forever, or the call has a timeout of its own.
    #[inline]
    pub(crate) fn new(deadline: Option<Instant>) -> Waiter {
        Waiter { deadline, handled: signals::handled(), spin: None, spin_found: false }
    }

    /// Whether it spins before it sleeps.
    #[inline]
    pub(crate) fn may_spin(&mut self) -> bool {
        if self.spin.is_none() {
            self.begin();
        }
        self.spin.as_ref().is_some_and(Wait::spins) && signals::handled() == self.handled
    }

    // Not inlined, like the functions below: the accounting needs stack, and that of a handler may
    // be short.
    #[inline(never)]
    fn begin(&mut self) {
        self.spin = Some(Wait::new(self.deadline));
    }

    /// Whether its spin is over.
    #[inline]
    pub(crate) fn has_spun(&self) -> bool {
        self.spin.as_ref().is_some_and(|spin| !spin.spins())
    }

    /// Ends the spin: the next wait is a sleep.
    pub(crate) fn stop(&mut self) {
        if let Some(spin) = &mut self.spin {
            spin.stop();
        }
    }

    /// Waits.
    #[inline]
    pub(crate) fn wait<W: Waiting>(&mut self, call: &mut W) -> W::Outcome {
        loop {
            match call.collect(self) {
                Break(outcome) => {
                    if W::is_found(&outcome) {
                        self.found(call.found_in_rings());
                    }
                    return outcome;
                }
                Continue(Phase::Collect) => continue,
                Continue(Phase::Spin) if self.spin(call) => continue,
                Continue(Phase::Spin | Phase::Sleep) => self.stop(),
            }
            let unseen = match call.arm() {
                Break(outcome) => return outcome,
                Continue(Armed::Pending) => continue,
                Continue(Armed::Asleep { unseen }) => unseen,
            };
            let handled = signals::handled();
            if signals::end_a_wait(self.handled, || call.restarts()) {
                return call.interrupted();
            }
            self.handled = handled;
            let sleep = Sleep::begin();
            let slept = call.sleep(soonest(self.deadline, unseen));
            sleep.end(slept.at, slept.peer_woke_at);
            match slept.outcome {
                Break(outcome) => return outcome,
                Continue(()) if self.is_over() => return call.timed_out(),
                Continue(()) => {}
            }
        }
    }

    #[inline(never)]
    fn found(&mut self, in_rings: bool) {
        if let Some(spin) = &mut self.spin {
            spin.found(self.spin_found && in_rings);
        }
    }

    /// Spins until something is there or the kernel has to be asked (true), or until spinning no
    /// longer pays or a handler ran.
    #[inline(never)]
    fn spin<W: Waiting>(&mut self, call: &mut W) -> bool {
        call.begin_spin();
        let Some(spin) = &mut self.spin else { return false };
        self.spin_found = false;
        while spin.again() && signals::handled() == self.handled {
            if call.poll_rings() {
                self.spin_found = true;
                return true;
            }
        }
        spin.spins() && signals::handled() == self.handled
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| clock::now() >= deadline)
    }
}

/// The earlier of two times, if any.
pub(crate) fn soonest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}
