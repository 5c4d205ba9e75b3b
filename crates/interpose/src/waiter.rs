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
    fn begins_to_look(&mut self);

    /// Checks the rings once, without the kernel. False: nothing is there.
    fn looks(&mut self) -> bool;

    /// Arms the connections, so that peers wake this thread.
    fn arms(&mut self) -> ControlFlow<Self::Outcome, Armed>;

    /// Sleeps until something comes, or until this time, and disarms.
    fn sleeps(&mut self, until: Option<Instant>) -> Slept<Self::Outcome>;

    /// Whether the call continues after a handler with SA_RESTART (signal(7)).
    fn restarts(&self) -> bool {
        false
    }

    /// Nothing came until the deadline.
    fn has_nothing(&mut self) -> Self::Outcome;

    /// A handler ended the call before it slept.
    fn is_interrupted(&mut self) -> Self::Outcome;

    /// Whether the outcome is what was waited for.
    fn is_find(outcome: &Self::Outcome) -> bool;

    /// Whether it came from a ring: for calls whose [`Self::looks`] cannot say.
    fn found_in_rings(&self) -> bool {
        true
    }
}

/// The next step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Collect,
    Look,
    Sleep,
}

/// The result of arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// Something is here.
    News,
    /// Nothing is here. `unseen`: when the next peer that may wait [unseen](crate::unseen) is due
    /// for a wake-up.
    Asleep { unseen: Option<Instant> },
}

/// A sleep that has ended.
pub(crate) struct Slept<Outcome> {
    pub(crate) at: Instant,
    /// When the peer sent the wake-up that ended it, in nanoseconds; 0: not known.
    pub(crate) called: u64,
    pub(crate) outcome: ControlFlow<Outcome>,
}

/// The state of one wait.
pub(crate) struct Waiter {
    deadline: Option<Instant>,
    /// Handlers that had run in this thread before.
    handled: u32,
    look: Option<Wait>,
    /// The last spin has found something, and did not end to ask the kernel.
    saw: bool,
}

impl Waiter {
    /// Waits until `deadline`; `None`: forever, or the call has a timeout of its own.
    #[inline]
    pub(crate) fn new(deadline: Option<Instant>) -> Waiter {
        Waiter { deadline, handled: signals::handled(), look: None, saw: false }
    }

    /// Whether it spins before it sleeps.
    #[inline]
    pub(crate) fn may_look(&mut self) -> bool {
        if self.look.is_none() {
            self.begin();
        }
        self.look.as_ref().is_some_and(Wait::spins) && signals::handled() == self.handled
    }

    // Not inlined, like the functions below: the accounting needs stack, and that of a handler may
    // be short.
    #[inline(never)]
    fn begin(&mut self) {
        self.look = Some(Wait::new(self.deadline));
    }

    /// Whether its spin is over.
    #[inline]
    pub(crate) fn has_looked(&self) -> bool {
        self.look.as_ref().is_some_and(|look| !look.spins())
    }

    /// Ends the spin: the next wait is a sleep.
    pub(crate) fn stop(&mut self) {
        if let Some(look) = &mut self.look {
            look.stop();
        }
    }

    /// Waits.
    #[inline]
    pub(crate) fn wait<W: Waiting>(&mut self, call: &mut W) -> W::Outcome {
        loop {
            match call.collect(self) {
                Break(outcome) => {
                    if W::is_find(&outcome) {
                        self.found(call.found_in_rings());
                    }
                    return outcome;
                }
                Continue(Phase::Collect) => continue,
                Continue(Phase::Look) if self.look(call) => continue,
                Continue(Phase::Look | Phase::Sleep) => self.stop(),
            }
            let unseen = match call.arms() {
                Break(outcome) => return outcome,
                Continue(Armed::News) => continue,
                Continue(Armed::Asleep { unseen }) => unseen,
            };
            let handled = signals::handled();
            if signals::end_a_wait(self.handled, || call.restarts()) {
                return call.is_interrupted();
            }
            self.handled = handled;
            let sleep = Sleep::begin();
            let slept = call.sleeps(soonest(self.deadline, unseen));
            sleep.end(slept.at, slept.called);
            match slept.outcome {
                Break(outcome) => return outcome,
                Continue(()) if self.is_over() => return call.has_nothing(),
                Continue(()) => {}
            }
        }
    }

    #[inline(never)]
    fn found(&mut self, in_rings: bool) {
        if let Some(look) = &mut self.look {
            look.found(self.saw && in_rings);
        }
    }

    /// Spins until something is there or the kernel has to be asked (true), or until spinning no
    /// longer pays or a handler ran.
    #[inline(never)]
    fn look<W: Waiting>(&mut self, call: &mut W) -> bool {
        call.begins_to_look();
        let Some(look) = &mut self.look else { return false };
        self.saw = false;
        while look.again() && signals::handled() == self.handled {
            if call.looks() {
                self.saw = true;
                return true;
            }
        }
        look.spins() && signals::handled() == self.handled
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| clock::now() >= deadline)
    }
}

/// The earlier of two times, if any.
pub(crate) fn soonest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}
