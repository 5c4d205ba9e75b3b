//! How long a thread looks for messages before it sleeps.
//!
//! A sleep costs a wake-up of tens of microseconds; looking costs the core. It pays while the
//! next message is near, which is learned from how long waits took; and it stops where others
//! want the core, which is seen in how long a yield of it takes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No longer than a wake-up costs: a look in vain then at most doubles the cost of the wait.
const BUDGET: Duration = Duration::from_micros(50);
/// What is believed of a thread that nothing is known of.
const FAR: u64 = 2 * BUDGET.as_nanos() as u64;
/// A yield that takes longer met others at work.
const CROWDED: Duration = Duration::from_micros(100);
/// Waits that are not spun after that; doubled each time.
const PAUSE: u32 = 256;
const LONGEST_PAUSE: u32 = 1 << 16;
/// Pauses of the processor between two yields.
const PAUSES: u32 = 15;

/// Set once: nanoseconds to spin always, and 1; 0: learn.
static FIXED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn fix(spin: Option<Duration>) {
    let value = spin.map_or(0, |spin| u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX - 1) + 1);
    FIXED.store(value, Ordering::Relaxed);
}

#[derive(Clone, Copy)]
struct Learned {
    /// Moving average of how long waits took, in nanoseconds.
    gap: u64,
    pause: u32,
    next_pause: u32,
}

thread_local! {
    static LEARNED: Cell<Learned> = const { Cell::new(Learned { gap: FAR, pause: 0, next_pause: PAUSE }) };
}

/// One wait of this thread.
pub(crate) struct Wait {
    began: Instant,
    until: Instant,
    looks: u32,
}

impl Wait {
    /// Begins a wait that ends at `deadline` at the latest.
    pub(crate) fn new(deadline: Option<Instant>) -> Wait {
        let began = Instant::now();
        let fixed = FIXED.load(Ordering::Relaxed);
        let budget = if fixed > 0 {
            Duration::from_nanos(fixed - 1)
        } else {
            LEARNED.with(|cell| {
                let mut learned = cell.get();
                let pays = learned.pause == 0 && learned.gap < BUDGET.as_nanos() as u64;
                learned.pause = learned.pause.saturating_sub(1);
                cell.set(learned);
                if pays { BUDGET } else { Duration::ZERO }
            })
        };
        let until = began + budget;
        Wait { began, until: deadline.map_or(until, |deadline| deadline.min(until)), looks: 0 }
    }

    /// Whether to look once more before sleeping. Pauses, or yields the core.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(PAUSES) {
            std::hint::spin_loop();
            return true;
        }
        let before = Instant::now();
        if before >= self.until {
            return false;
        }
        std::thread::yield_now();
        if before.elapsed() > CROWDED {
            crowded();
            return false;
        }
        true
    }

    /// Time since the wait began, as far as the last yield.
    pub(crate) fn spins(&self) -> bool {
        self.until > self.began
    }

    /// What was waited for is here.
    pub(crate) fn ended(&self) {
        let gap = self.began.elapsed().min(4 * BUDGET).as_nanos() as u64;
        LEARNED.with(|cell| {
            let mut learned = cell.get();
            learned.gap = learned.gap - learned.gap / 8 + gap / 8;
            cell.set(learned);
        });
    }
}

fn crowded() {
    LEARNED.with(|cell| {
        let mut learned = cell.get();
        learned.pause = learned.next_pause;
        learned.next_pause = (learned.next_pause * 2).min(LONGEST_PAUSE);
        cell.set(learned);
    });
}
