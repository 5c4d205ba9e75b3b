//! Whether looks that hand the core to others pay: found out by doing without them for a while.
//!
//! Where who is waited for has the same core, a look costs what it takes from that one and saves a bell, and
//! nothing that this thread can see of one wait tells which is more. What it receives in a second with and without does.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::Instant;

/// Messages of half a turn, of either kind. A turn is judged by its second half: the first has the rests of the other
/// end's rings that the turn before brought about.
const HALF: u32 = 256;
/// Who takes longer for them has more than one other on its core, and its own pace tells little.
const SLOW: Duration = Duration::from_millis(50);
/// Halves of a trial: a turn with looks, one without, and both again.
const HALVES: u32 = 8;
/// What was not done before has to be faster by this part.
const MARGIN: u32 = 16;
/// A program that accepts connections begins its first trial so much later: two ends that take the same turns at the
/// same time judge each other's.
const SERVERS_LATER: Duration = Duration::from_millis(150);
/// How long an outcome holds; twice as long each time that it is the same.
const HOLDS: Duration = Duration::from_millis(500);
const HOLDS_MOST: Duration = Duration::from_secs(16);

/// Trials of this process that are running, or were when their thread ended.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Turns of all trials of this process so far.
static TURNS: AtomicU32 = AtomicU32::new(0);
/// This program accepts connections.
static SERVES: AtomicBool = AtomicBool::new(false);

/// This program has accepted a connection.
pub(crate) fn serves() {
    // Whoever receives reads the words beside it.
    if !SERVES.load(Ordering::Relaxed) {
        SERVES.store(true, Ordering::Relaxed);
    }
}

/// Whether there may be a trial that counts messages.
#[inline]
pub(super) fn any() -> bool {
    RUNNING.load(Ordering::Relaxed) > 0
}

/// In the child of a fork: only this thread is here.
pub(super) fn forked(trial: &Trial) {
    RUNNING.store(u32::from(trial.turn().is_some()), Ordering::Relaxed);
}

#[derive(Clone, Copy)]
enum State {
    /// Looks have not been found to hand the core to others.
    Off,
    Running {
        /// Another number for each turn.
        turn: u32,
        /// The half, and when it began.
        half: u32,
        began: Instant,
        /// Of that half.
        messages: u32,
        /// What the halves that counted took, with looks and without.
        took: [Duration; 2],
    },
    /// Until then.
    Settled(Instant),
}

/// One thread's.
#[derive(Clone, Copy)]
pub(super) struct Trial {
    state: State,
    looks: bool,
    holds: Duration,
}

impl Trial {
    pub(super) const NONE: Trial = Trial { state: State::Off, looks: true, holds: HOLDS };

    /// Whether one may begin, once looks are found to hand the core to others.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self.state {
            State::Off => true,
            State::Settled(until) => now >= until,
            State::Running { .. } => false,
        }
    }

    /// The turn of the trial that is running: a number that no other turn has.
    pub(super) fn turn(&self) -> Option<u32> {
        match self.state {
            State::Running { turn, .. } => Some(turn),
            State::Off | State::Settled(_) => None,
        }
    }

    /// Begins one, if it is due.
    pub(super) fn begin(&mut self, now: Instant) {
        if !self.is_due(now) {
            return;
        }
        if matches!(self.state, State::Off) && SERVES.load(Ordering::Relaxed) {
            // Two servers, one of which is the other's client, are still apart mostly.
            let apart = Duration::from_millis(u64::from(std::process::id() % 64));
            self.state = State::Settled(now + SERVERS_LATER + apart);
            return;
        }
        RUNNING.fetch_add(1, Ordering::Relaxed);
        self.state =
            State::Running { turn: next_turn(), half: 0, began: now, messages: 0, took: [Duration::ZERO; 2] };
    }

    /// Whether the wait that begins now is to look.
    #[inline]
    pub(super) fn looks(&mut self, now: Instant) -> bool {
        match self.state {
            State::Running { began, .. } if now.saturating_sub(began) > SLOW => self.give_up(now),
            State::Running { half, .. } => return !is_without(half),
            // Who looks begins one only where that hands the core to others still.
            State::Settled(until) if !self.looks && now >= until => {
                self.begin(now);
                return true;
            }
            State::Off | State::Settled(_) => {}
        }
        self.looks
    }

    /// The thread has received a message.
    #[inline]
    pub(super) fn received(&mut self, now: impl FnOnce() -> Instant) {
        if let State::Running { messages, .. } = &mut self.state {
            *messages += 1;
            if *messages == HALF {
                self.end_half(now());
            }
        }
    }

    #[cold]
    fn end_half(&mut self, now: Instant) {
        let State::Running { turn, half, began, messages, took } = &mut self.state else { return };
        let (ended, lasted) = (*half, now.saturating_sub(*began));
        if lasted > SLOW {
            return self.give_up(now);
        }
        (*half, *began, *messages) = (ended + 1, now, 0);
        if ended.is_multiple_of(2) {
            return;
        }
        *turn = next_turn();
        took[usize::from(is_without(ended))] += lasted;
        let [with, without] = *took;
        let looks =
            if self.looks { without + with / MARGIN > with } else { with + without / MARGIN < without };
        // The first two turns are enough to go on as before.
        if is_without(ended) && (looks == self.looks || ended + 1 == HALVES) {
            self.holds = if looks == self.looks { (self.holds * 2).min(HOLDS_MOST) } else { HOLDS };
            self.settle(looks, now);
        }
    }

    /// Nothing is known.
    #[cold]
    fn give_up(&mut self, now: Instant) {
        self.holds = HOLDS;
        self.settle(true, now);
    }

    fn settle(&mut self, looks: bool, now: Instant) {
        let _ = RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| running.checked_sub(1));
        self.looks = looks;
        self.state = State::Settled(now + self.holds);
    }
}

fn next_turn() -> u32 {
    TURNS.fetch_add(1, Ordering::Relaxed)
}

fn is_without(half: u32) -> bool {
    half / 2 % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    /// Waits for a message each, for so many milliseconds, which take so many microseconds with a look and
    /// without: how many there were of both.
    fn run(trial: &mut Trial, now: &mut Instant, lasts: u64, costs: [u64; 2]) -> [u32; 2] {
        let (until, mut waits) = (*now + Duration::from_millis(lasts), [0; 2]);
        while *now < until {
            let without = usize::from(!trial.looks(*now));
            if without == 0 && trial.is_due(*now) {
                trial.begin(*now);
            }
            waits[without] += 1;
            *now += Duration::from_micros(costs[without]);
            trial.received(|| *now);
        }
        waits
    }

    #[test]
    fn what_is_faster_is_done() {
        let (mut trial, mut now) = (Trial::NONE, clock::now());
        assert!(trial.looks(now));
        let mut run = |lasts, costs| run(&mut trial, &mut now, lasts, costs);
        // Looks cost a fifth more: nearly all waits do without.
        run(1_000, [30, 25]);
        let [with, without] = run(2_000, [30, 25]);
        assert!(without > 10 * with, "{with} with a look, {without} without");
        // Things change: that is found out late, after they were sure.
        run(20_000, [30, 25]);
        run(20_000, [10, 25]);
        let [with, without] = run(2_000, [10, 25]);
        assert!(with > 10 * without, "{with} with a look, {without} without");
    }

    #[test]
    fn little_difference_is_no_reason() {
        let (mut trial, mut now) = (Trial::NONE, clock::now());
        let [with, without] = run(&mut trial, &mut now, 10_000, [100, 98]);
        assert!(with > 20 * without, "{with} with a look, {without} without");
        // Nor is a difference that others make.
        let [_, without] = run(&mut trial, &mut now, 10_000, [300, 200]);
        assert!(without < 512, "{without} without a look");
    }

    #[test]
    fn a_pause_says_nothing() {
        let (mut trial, mut now) = (Trial::NONE, clock::now());
        trial.begin(now);
        // In the half that counts of the turn with looks.
        run(&mut trial, &mut now, 8, [20, 20]);
        now += Duration::from_secs(10);
        trial.received(|| now);
        run(&mut trial, &mut now, 400, [20, 20]);
        assert!(trial.looks && trial.turn().is_none());
    }
}
