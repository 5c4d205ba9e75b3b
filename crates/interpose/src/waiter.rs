//! How a call waits: it collects what is here, looks at the rings for as long as that pays, has the peers wake it and sleeps, until
//! one deadline. What differs between read(2), poll(2) and epoll_wait(2) is how they collect, sleep and report.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use crate::clock::{self, Instant};
use crate::signals;
use crate::spin::{Sleep, Wait};
use crate::waiters::soonest;

/// A call that waits.
pub(crate) trait Waiting {
    /// What it comes to.
    type Outcome;

    /// What the rings have, and the kernel where it is to be asked.
    fn collect(&mut self, waiter: &mut Waiter) -> ControlFlow<Self::Outcome, Next>;

    /// Its rings are looked at from here on, and their peers need not wake this thread.
    fn begins_to_look(&mut self);

    /// One look at the rings alone. False: nothing is there.
    fn looks(&mut self) -> bool;

    /// Has the peers wake this thread. `overdue`: how long it has slept for peers that may wait unseen.
    fn arms(&mut self, overdue: Duration) -> ControlFlow<Self::Outcome, Armed>;

    /// Sleeps, if not until something comes, then until this time, and asks for no wake-up any more.
    fn sleeps(&mut self, until: Option<Instant>) -> Woken<Self::Outcome>;

    /// Whether it goes on after a handler with SA_RESTART (signal(7)).
    fn restarts(&self) -> bool {
        false
    }

    /// Nothing came until the deadline.
    fn has_nothing(&mut self) -> Self::Outcome;

    /// A handler ended it before it slept.
    fn is_interrupted(&mut self) -> Self::Outcome;
}

/// After nothing was collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Collect,
    Look,
    Sleep,
}

/// What asking for wake-ups has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// Something is here.
    News,
    /// Nothing; and how soon one of the peers may count as one that waits unseen.
    Asleep { unseen: Option<Duration> },
}

/// The end of a sleep.
pub(crate) struct Woken<Outcome> {
    /// Nothing came.
    pub(crate) in_vain: bool,
    /// When the peer called that ended it; 0: not known.
    pub(crate) called: u64,
    pub(crate) outcome: ControlFlow<Outcome>,
}

/// What one wait has come to so far.
pub(crate) struct Waiter {
    deadline: Option<Instant>,
    /// Handlers that had run in this thread.
    handled: u32,
    look: Option<Wait>,
    overdue: Duration,
}

impl Waiter {
    /// Until `deadline`; `None`: for ever, or the call keeps a time limit of its own.
    #[inline]
    pub(crate) fn new(deadline: Option<Instant>) -> Waiter {
        Waiter { deadline, handled: signals::handled(), look: None, overdue: Duration::ZERO }
    }

    /// Whether it looks before it sleeps.
    #[inline]
    pub(crate) fn may_look(&mut self) -> bool {
        let deadline = self.deadline;
        self.look.get_or_insert_with(|| Wait::new(deadline)).spins() && signals::handled() == self.handled
    }

    /// Whether it no longer looks.
    #[inline]
    pub(crate) fn has_looked(&self) -> bool {
        self.look.as_ref().is_some_and(|look| !look.spins())
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| clock::now() >= deadline)
    }

    /// Waits.
    #[inline]
    pub(crate) fn wait<W: Waiting>(&mut self, call: &mut W) -> W::Outcome {
        loop {
            match call.collect(self) {
                Break(outcome) => {
                    if let Some(look) = &mut self.look {
                        look.found();
                    }
                    return outcome;
                }
                Continue(Next::Collect) => continue,
                Continue(Next::Look) if self.look(call) => continue,
                Continue(Next::Look | Next::Sleep) => {}
            }
            if let Some(look) = &mut self.look {
                look.stop();
            }
            let unseen = match call.arms(self.overdue) {
                Break(outcome) => return outcome,
                Continue(Armed::News) => continue,
                Continue(Armed::Asleep { unseen }) => unseen,
            };
            if signals::end_a_wait(self.handled, || call.restarts()) {
                return call.is_interrupted();
            }
            self.handled = signals::handled();
            let soon = unseen.map(|unseen| clock::now() + unseen);
            let sleep = Sleep::begin();
            let woken = call.sleeps(soonest(self.deadline, soon));
            sleep.end(woken.called);
            if woken.in_vain {
                self.overdue = unseen.unwrap_or(self.overdue);
            }
            match woken.outcome {
                Break(outcome) => return outcome,
                Continue(()) if self.is_over() => return call.has_nothing(),
                Continue(()) => {}
            }
        }
    }

    /// Looks until something is there, or the kernel is to be asked (true), or looking no longer pays, or a handler ran.
    fn look<W: Waiting>(&mut self, call: &mut W) -> bool {
        call.begins_to_look();
        let Some(look) = &mut self.look else { return false };
        while look.again() && signals::handled() == self.handled {
            if call.looks() {
                return true;
            }
        }
        look.spins() && signals::handled() == self.handled
    }
}
