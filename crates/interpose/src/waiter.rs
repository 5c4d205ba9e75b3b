//! How a call waits: it collects what is here, looks at the rings for as long as that pays, has the peers wake it and
//! sleeps, until one deadline. read(2), poll(2) and epoll_wait(2) differ in how they collect, sleep and report.

use std::ops::ControlFlow::{self, Break, Continue};

use crate::clock::{self, Instant};
use crate::signals;
use crate::spin::{Sleep, Wait};

/// A call that waits.
pub(crate) trait Waiting {
    /// What it comes to.
    type Outcome;

    /// What the rings have, and the kernel where it is to be asked; else what comes next.
    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<Self::Outcome, Phase>;

    /// Its rings are looked at from here on, and their peers need not wake this thread.
    fn begins_to_look(&mut self);

    /// One look at the rings alone. False: nothing is there.
    fn looks(&mut self) -> bool;

    /// Has the peers wake this thread.
    fn arms(&mut self) -> ControlFlow<Self::Outcome, Armed>;

    /// Sleeps until something comes, or until this time, and asks for no wake-up any more.
    fn sleeps(&mut self, until: Option<Instant>) -> Slept<Self::Outcome>;

    /// Whether it goes on after a handler with SA_RESTART (signal(7)).
    fn restarts(&self) -> bool {
        false
    }

    /// Nothing came until the deadline.
    fn has_nothing(&mut self) -> Self::Outcome;

    /// A handler ended it before it slept.
    fn is_interrupted(&mut self) -> Self::Outcome;

    /// Whether it came to something that was waited for.
    fn is_find(outcome: &Self::Outcome) -> bool;

    /// Whether that lies in a ring: for calls whose [`Self::looks`] does not know.
    fn found_in_rings(&self) -> bool {
        true
    }
}

/// What a call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Collect,
    Look,
    Sleep,
}

/// What asking for wake-ups has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// Something is here.
    News,
    /// Nothing; and when one of the peers counts as one that waits [unseen](crate::unseen).
    Asleep { unseen: Option<Instant> },
}

/// A sleep that has ended.
pub(crate) struct Slept<Outcome> {
    pub(crate) at: Instant,
    /// When the peer called that ended it, in nanoseconds; 0: not known.
    pub(crate) called: u64,
    pub(crate) outcome: ControlFlow<Outcome>,
}

/// What one wait has come to so far.
pub(crate) struct Waiter {
    deadline: Option<Instant>,
    /// Handlers that had run in this thread.
    handled: u32,
    look: Option<Wait>,
    /// The last look has found something, and did not end so that the kernel is asked.
    saw: bool,
}

impl Waiter {
    /// Until `deadline`; `None`: for ever, or the call keeps a time limit of its own.
    #[inline]
    pub(crate) fn new(deadline: Option<Instant>) -> Waiter {
        Waiter { deadline, handled: signals::handled(), look: None, saw: false }
    }

    /// Whether it looks before it sleeps.
    #[inline]
    pub(crate) fn may_look(&mut self) -> bool {
        if self.look.is_none() {
            self.begin();
        }
        self.look.as_ref().is_some_and(Wait::spins) && signals::handled() == self.handled
    }

    // Apart, as is what follows: the account is long, and the stack of a handler may be short.
    #[inline(never)]
    fn begin(&mut self) {
        self.look = Some(Wait::new(self.deadline));
    }

    /// Whether it no longer looks.
    #[inline]
    pub(crate) fn has_looked(&self) -> bool {
        self.look.as_ref().is_some_and(|look| !look.spins())
    }

    /// It looks no more: it sleeps.
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

    /// Looks until something is there, or the kernel is to be asked (true), or looking no longer pays, or a handler ran.
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

/// The sooner of two times, where there are any.
pub(crate) fn soonest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}
