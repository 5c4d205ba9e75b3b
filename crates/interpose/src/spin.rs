//! How long a thread looks for messages before it sleeps.
//!
//! A sleep costs a wake-up of tens of microseconds; looking costs the core. Whether it pays is
//! found out by trying: a look in vain makes the next tries rarer, one that finds something
//! makes every wait begin with a look. Both ends have to look for either to gain, so the first
//! waits of a thread begin with one. Between looks the core is given to whoever wants it. If it
//! comes back late, others are at work on it, and giving it away loses a turn: for a while looks
//! keep it, are shorter, and go on only while they take less time than sleeps would. The same is
//! asked of looks that give it away where who is waited for has the same core, by [trial]: a fair
//! scheduler (EEVDF) hands it over only when this thread has had as much of it as that one, and a
//! sleep does so at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{self, Instant};
use crate::family;
use crate::stats::{COUNTERS, count};

mod trial;

use trial::Trial;
pub(crate) use trial::serves;

/// As long as two wake-ups take, so that an answer of an end that slept is still met.
const BUDGET: Duration = Duration::from_micros(100);
/// The same where others want the core: one wake-up.
const KEPT_BUDGET: Duration = Duration::from_micros(30);
/// Looks in vain that are put up with.
const VAIN: u32 = 3;
/// Nanoseconds that a sleep and its wake-up take of both cores.
const SLEEP: i64 = 10_000;
/// To be saved where the core is kept, to make up for looks in vain.
const ENOUGH: i64 = 16 * SLEEP;
/// Waits that are measured after a long one, which costs system calls; and how many of them give the core to
/// others until it is tried whether that pays.
const MEASURED: u32 = 16;
const SHARED: u32 = 8;
/// What is found later than this after the wait began was waited for by more than a few yields.
const LONG: Duration = Duration::from_micros(10);
/// After more of them a try comes every 2^this waits at the least.
const RAREST: u32 = 10;
/// A yield that takes longer met others at work.
const CROWDED: Duration = Duration::from_micros(100);
/// For so many times the time that it took none is made after that: more each time.
const PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 128;
/// Waits that found something until that begins anew.
const CALM: u32 = 256;
/// Pauses of the processor between two yields.
const PAUSES: u32 = 15;

/// Who looks at rings asks the kernel for events of its own at least this often.
pub(crate) const KERNEL_EVERY: Duration = Duration::from_micros(50);

/// Set once: nanoseconds to spin always, and 1; 0: learn.
static FIXED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn fix(spin: Option<Duration>) {
    let value = spin.map_or(0, |spin| u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX - 1) + 1);
    FIXED.store(value, Ordering::Relaxed);
}

/// What came of looks of one kind.
#[derive(Clone, Copy)]
struct Tries {
    /// Nanoseconds that looks have saved, less those that they took from others.
    saved: i64,
    /// Looks in vain since enough was saved.
    vain: u32,
    /// Waits that are not spun.
    skip: u32,
}

impl Tries {
    const NONE: Tries = Tries { saved: 0, vain: 0, skip: 0 };

    /// Something was found while the core was kept from others for so long.
    fn found_after(&mut self, took: Duration) {
        let took = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX);
        self.saved = self.saved.saturating_add(SLEEP).saturating_sub(took).min(ENOUGH);
        if self.saved >= ENOUGH {
            self.vain = 0;
        } else if self.saved < 0 {
            // A sleep would have cost less.
            self.in_vain(0);
        }
    }

    /// A look was in vain, and so many of the family's since one of them was not: who is new need not find out by
    /// itself.
    fn in_vain(&mut self, of_family: u32) {
        self.saved = 0;
        self.vain = (self.vain + 1).max(of_family).min(VAIN + RAREST);
        self.skip = (1 << self.vain.saturating_sub(VAIN)) - 1;
    }
}

#[derive(Clone, Copy)]
struct Learned {
    /// Of looks between which the core is yielded.
    yielding: Tries,
    /// Of those that keep it.
    keeping: Tries,
    /// Until when it is kept, since others want it.
    paused: Option<Instant>,
    next_pause: u32,
    /// Waits that are still measured, and those that gave the core to others meanwhile.
    measured: u32,
    shared: u32,
    trial: Trial,
    /// Waits that found something since, and whether any ever did.
    found: u32,
    has_found: bool,
    switches: i64,
}

thread_local! {
    static LEARNED: Cell<Learned> = const { Cell::new(Learned {
        yielding: Tries::NONE, keeping: Tries::NONE, paused: None, next_pause: PAUSE, measured: 0, shared: 0,
        trial: Trial::NONE, found: 0, has_found: false, switches: 0,
    }) };
}

/// This thread has received.
#[inline]
pub(crate) fn received() {
    if trial::any() {
        learn(|learned| learned.trial.received(clock::now));
    }
}

impl Learned {
    fn tries(&mut self, keeps: bool) -> &mut Tries {
        if keeps { &mut self.keeping } else { &mut self.yielding }
    }

    /// Something was found; whether others had the core before, if that was measured.
    fn found_yielding(&mut self, shared: Option<bool>) {
        self.yielding.vain = 0;
        self.shared += u32::from(shared == Some(true));
        if self.shared == SHARED {
            (self.measured, self.shared) = (0, 0);
            self.trial.begin(clock::now());
        }
    }
}

fn learn(change: impl FnOnce(&mut Learned)) {
    LEARNED.with(|cell| {
        let mut learned = cell.get();
        change(&mut learned);
        cell.set(learned);
    });
}

/// If this thread tries whether looks pay: a number that is another with each turn.
pub(crate) fn turn() -> Option<u32> {
    if trial::any() { LEARNED.get().trial.turn() } else { None }
}

/// In the child of a fork.
pub(crate) fn forked() {
    trial::forked(&LEARNED.get().trial);
}

/// One wait of this thread.
pub(crate) struct Wait {
    began: Instant,
    until: Instant,
    looks: u32,
    /// What the thread had had of its core before, if that is measured.
    before: Option<Duration>,
    /// The core is not yielded meanwhile.
    keeps: bool,
}

impl Wait {
    /// Begins a wait that ends at `deadline` at the latest.
    pub(crate) fn new(deadline: Option<Instant>) -> Wait {
        let began = clock::now();
        let fixed = FIXED.load(Ordering::Relaxed);
        let (mut keeps, mut measures) = (false, false);
        let budget = if fixed > 0 {
            Duration::from_nanos(fixed - 1)
        } else {
            let mut budget = Duration::ZERO;
            learn(|learned| {
                keeps = learned.paused.is_some_and(|until| began < until);
                if !keeps {
                    learned.paused = None;
                    if !learned.trial.looks(began) {
                        return;
                    }
                    measures = learned.measured > 0;
                    learned.measured = learned.measured.saturating_sub(1);
                }
                let tried = learned.trial.turn().is_some();
                match &mut learned.tries(keeps).skip {
                    skip if *skip == 0 || tried => budget = if keeps { KEPT_BUDGET } else { BUDGET },
                    skip => *skip -= 1,
                }
            });
            budget
        };
        let until = began + budget;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let before = (measures && until > began).then(clock::of_thread);
        Wait { began, until, looks: 0, before, keeps }
    }

    /// Whether to look once more before sleeping. Pauses, or yields the core.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(PAUSES) {
            std::hint::spin_loop();
            return true;
        }
        let before = clock::now();
        if before >= self.until {
            if self.spins() {
                self.in_vain();
                self.until = self.began;
            }
            return false;
        }
        if self.keeps {
            return true;
        }
        std::thread::yield_now();
        let lost = clock::elapsed(before);
        if lost > CROWDED && others_ran() {
            crowded(lost);
            return false;
        }
        true
    }

    /// Whether it looks before it sleeps.
    pub(crate) fn spins(&self) -> bool {
        self.until > self.began
    }

    /// What was looked for is here.
    pub(crate) fn found(&mut self) {
        // Before the first yield nobody else has had the core, and no clock need be asked.
        let took =
            if self.keeps || self.looks >= PAUSES { clock::elapsed(self.began) } else { Duration::ZERO };
        let shared = self.before.take().map(|before| {
            let own = clock::of_thread().saturating_sub(before);
            // The rest was others', or an interrupt's.
            took.saturating_sub(own) > own / 2
        });
        family::found();
        learn(|learned| {
            if self.keeps {
                learned.keeping.found_after(took);
            } else {
                learned.found_yielding(shared);
                if took > LONG && learned.measured == 0 && learned.trial.is_due(self.began) {
                    (learned.measured, learned.shared) = (MEASURED, 0);
                }
            }
            learned.found = learned.found.saturating_add(1);
            learned.has_found = true;
        });
    }

    fn in_vain(&self) {
        count(&COUNTERS.vain, 1);
        let of_family = family::looked_in_vain();
        learn(|learned| {
            // Who has found something knows better.
            let of_family = if learned.has_found { 0 } else { of_family };
            learned.tries(self.keeps).in_vain(of_family);
        });
    }
}

/// Whether another thread ran in place of this one since this was last asked: a virtual
/// machine's host takes the core, too, and comes back without anybody waiting for it here.
fn others_ran() -> bool {
    let switches = switches();
    let mut ran = false;
    learn(|learned| {
        ran = learned.switches != switches;
        learned.switches = switches;
    });
    ran
}

/// Times that this thread was taken from its core, by its own yields among others.
#[allow(unsafe_code)] // getrusage(2)
fn switches() -> i64 {
    // SAFETY: zeros are a usage, and there is room for one.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// What was learned no longer holds: the next waits begin with a look.
pub(crate) fn forget() {
    learn(|learned| (learned.yielding, learned.keeping) = (Tries::NONE, Tries::NONE));
}

fn crowded(lost: Duration) {
    count(&COUNTERS.crowded, 1);
    learn(|learned| {
        if learned.found >= CALM {
            learned.next_pause = PAUSE;
        }
        learned.found = 0;
        learned.paused = Some(clock::now() + lost * learned.next_pause);
        learned.next_pause = (learned.next_pause * 2).min(LONGEST_PAUSE);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(1);

    #[test]
    fn looks_in_vain_make_tries_rarer() {
        let mut tries = Tries::NONE;
        (0..VAIN).for_each(|_| tries.in_vain(0));
        assert_eq!(tries.skip, 0);
        tries.in_vain(0);
        assert_eq!(tries.skip, 1);
        tries.in_vain(VAIN + 3);
        assert_eq!(tries.skip, 7);
        (0..100).for_each(|_| tries.in_vain(0));
        assert_eq!(tries.skip, (1 << RAREST) - 1);
    }

    #[test]
    fn a_kept_core_is_paid_for() {
        let mut tries = Tries::NONE;
        (0..20).for_each(|_| tries.in_vain(0));
        // One find by chance is no reason to begin anew; many are.
        tries.found_after(QUICK);
        tries.in_vain(0);
        assert_eq!(tries.skip, (1 << RAREST) - 1);
        (0..20).for_each(|_| tries.found_after(QUICK));
        tries.in_vain(0);
        assert_eq!(tries.skip, 0);
        // What takes longer than a sleep does not pay.
        (0..20).for_each(|_| tries.found_after(KEPT_BUDGET));
        assert!(tries.skip > 0);
    }

    #[test]
    fn a_round_of_measuring_begins_one_trial() {
        let mut learned = LEARNED.get();
        learned.measured = MEASURED;
        (1..SHARED).for_each(|_| learned.found_yielding(Some(true)));
        learned.found_yielding(Some(false));
        assert!(learned.trial.turn().is_none() && learned.measured == MEASURED);
        learned.found_yielding(Some(true));
        let turn = learned.trial.turn();
        assert!(turn.is_some() && learned.measured == 0);
        (0..SHARED).for_each(|_| learned.found_yielding(Some(true)));
        assert_eq!(learned.trial.turn(), turn);
    }
}
