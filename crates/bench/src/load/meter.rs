//! What a client thread counts and records, and by which clock.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Connections, LoadError, Options, Outcome};

/// What the controller and the threads share.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stop: AtomicBool,
    /// When the first thread could start; the load's clock counts from there.
    pub(super) epoch: OnceLock<Instant>,
    /// The window in which latencies are recorded, nanoseconds by that clock.
    pub(super) window: Range<u64>,
    /// When the load begins no more requests, and when it waits for no more answers; never if it is to be stopped.
    pub(super) end: u64,
    last: u64,
    /// Of each thread.
    pub(super) counts: Vec<Counts>,
}

impl Control {
    pub(super) fn new(options: &Options, threads: usize) -> Arc<Self> {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let window = nanoseconds(options.warm_up)..nanoseconds(options.warm_up + options.window);
        let end = options.patience.map_or(u64::MAX, |_| window.end);
        Arc::new(Self {
            stop: AtomicBool::new(false),
            epoch: OnceLock::new(),
            end,
            last: end.saturating_add(options.patience.map_or(0, nanoseconds)),
            window,
            counts: (0..threads).map(|_| Counts::default()).collect(),
        })
    }
}

/// What a thread has done; written by it alone, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    pub(super) transactions: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Nanoseconds of turns in which a thread that does not sleep found nothing to do.
    pub(super) spun: AtomicU64,
}

/// A thread's counts and latencies.
pub(super) struct Meter {
    pub(super) control: Arc<Control>,
    /// Which of its counts are this thread's.
    thread: usize,
    /// The control's, once the load has started.
    epoch: Instant,
    outcome: Outcome,
    /// When the last turn of a spinning thread began.
    turned: u64,
}

impl Meter {
    pub(super) fn new(control: Arc<Control>, thread: usize) -> Self {
        Self { control, thread, epoch: Instant::now(), outcome: Outcome::new(), turned: 0 }
    }

    /// The thread can start.
    pub(super) fn start(&mut self) {
        self.epoch = *self.control.epoch.get_or_init(Instant::now);
    }

    /// Whether the load was stopped, or has ended by itself.
    pub(super) fn is_over(&self, under_way: usize) -> bool {
        let Control { stop, end, last, .. } = &*self.control;
        let is_past = |time| time < u64::MAX && self.now() >= time;
        stop.load(Ordering::Relaxed) || is_past(*last) || (is_past(*end) && under_way == 0)
    }

    #[inline]
    fn counts(&self) -> &Counts {
        &self.control.counts[self.thread]
    }

    /// Nanoseconds since the start of the load.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Ends a turn of a spinning thread's loop.
    pub(super) fn turn(&mut self, worked: bool) {
        let now = self.now();
        if !worked {
            add(&self.counts().spun, (now - self.turned).min(IDLE_TURN_MOST));
        }
        self.turned = now;
    }

    /// A request that was due has begun.
    pub(super) fn late(&mut self, due: u64, now: u64) {
        if self.control.window.contains(&due) {
            self.outcome.lag.saturating_record(now - due);
        }
    }

    /// A request is answered. Its latency belongs to the window by `counted`.
    #[inline]
    pub(super) fn transaction(&mut self, since: u64, now: u64, counted: u64) {
        add(&self.counts().transactions, 1);
        let window = &self.control.window;
        self.outcome.answered_in_window += u64::from(window.contains(&now));
        if window.contains(&counted) {
            self.outcome.latencies.saturating_record(now - since);
        }
    }

    pub(super) fn add_bytes(&self, count: usize) {
        add(&self.counts().transactions, count as u64);
    }

    /// Counts a failed connection; one too many ends the thread.
    pub(super) fn failure(&self, cause: io::Error, lifetime: Connections) -> Result<(), LoadError> {
        let failures = add(&self.counts().failures, 1);
        let most = match lifetime {
            Connections::Kept => 0,
            Connections::Reset(_) => FAILURES_MOST,
            Connections::Short => u64::MAX,
        };
        if failures > most { Err(LoadError::Server(failures, cause)) } else { Ok(()) }
    }

    /// What was recorded, with requests that have no answer, some of which were due by a schedule.
    pub(super) fn finish(mut self, unanswered: impl Iterator<Item = u64>, were_due: bool) -> Outcome {
        let now = self.now();
        for since in unanswered.filter(|since| self.control.window.contains(since)) {
            self.outcome.unanswered += 1;
            if were_due {
                self.outcome.latencies.saturating_record(now - since);
            }
        }
        self.outcome.answered = self.counts().transactions.load(Ordering::Relaxed);
        self.outcome.failures = self.counts().failures.load(Ordering::Relaxed);
        self.outcome
    }
}

/// Adds to a counter that only the caller writes: no locked instruction.
#[inline]
fn add(counter: &AtomicU64, more: u64) -> u64 {
    let count = counter.load(Ordering::Relaxed) + more;
    counter.store(count, Ordering::Relaxed);
    count
}

/// Failed connections that a thread bears.
const FAILURES_MOST: u64 = 999;

/// What takes longer than this was no turn, but another process or an interrupt.
const IDLE_TURN_MOST: u64 = 10_000;
