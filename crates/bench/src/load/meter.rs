//! What a client thread counts and records, and by which clock.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Connections, LoadError, Outcome};

/// What the controller and the threads share.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stop: AtomicBool,
    /// When the load started; its clock counts from there.
    pub(super) epoch: OnceLock<Instant>,
    /// The window in which latencies are recorded, nanoseconds by that clock.
    window: Range<u64>,
    /// How long a load that ends by itself waits for answers after it.
    patience: Option<u64>,
}

impl Control {
    pub(super) fn new(warm_up: Duration, window: Duration, patience: Option<Duration>) -> Self {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        Self {
            stop: AtomicBool::new(false),
            epoch: OnceLock::new(),
            window: nanoseconds(warm_up)..nanoseconds(warm_up + window),
            patience: patience.map(nanoseconds),
        }
    }

    pub(super) fn window(&self) -> Range<Instant> {
        let epoch = *self.epoch.get_or_init(Instant::now);
        epoch + Duration::from_nanos(self.window.start)..epoch + Duration::from_nanos(self.window.end)
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
    counts: Arc<Counts>,
    control: Arc<Control>,
    /// Dropped when the thread could start.
    ready: Option<Sender<()>>,
    /// The control's, once the load has started.
    epoch: Instant,
    outcome: Outcome,
    /// When the last turn of a spinning thread began.
    turned: u64,
}

impl Meter {
    pub(super) fn new(counts: Arc<Counts>, control: Arc<Control>, ready: Option<Sender<()>>) -> Self {
        Self { counts, control, ready, epoch: Instant::now(), outcome: Outcome::new(), turned: 0 }
    }

    /// Waits for the start of the load; one that ends by itself also starts by itself.
    pub(super) fn start(&mut self) {
        if self.control.patience.is_some() {
            self.control.epoch.get_or_init(Instant::now);
        }
        self.ready = None;
        self.epoch = *self.control.epoch.wait();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.control.stop.load(Ordering::Relaxed)
    }

    /// When a load that ends by itself begins no more requests, and when it waits for no more answers.
    pub(super) fn end(&self) -> Option<(u64, u64)> {
        let end = self.control.window.end;
        self.control.patience.map(|patience| (end, end + patience))
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
            add(&self.counts.spun, (now - self.turned).min(IDLE_TURN_MOST));
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
        add(&self.counts.transactions, 1);
        let window = &self.control.window;
        self.outcome.answered_in_window += u64::from(window.contains(&now));
        if window.contains(&counted) {
            self.outcome.latencies.saturating_record(now - since);
        }
    }

    pub(super) fn bytes(&self, count: usize) {
        add(&self.counts.transactions, count as u64);
    }

    /// Counts a failed connection; one too many ends the thread.
    pub(super) fn failure(&self, cause: io::Error, lifetime: Connections) -> Result<(), LoadError> {
        let failures = add(&self.counts.failures, 1);
        let most = match lifetime {
            Connections::Kept => 0,
            Connections::Reset(_) => FAILURES_MOST,
            Connections::Short => u64::MAX,
        };
        if failures > most { Err(LoadError::Server(failures, cause)) } else { Ok(()) }
    }

    /// A request that was due has no answer.
    pub(super) fn unanswered(&mut self, due: u64, now: u64) {
        if self.control.window.contains(&due) {
            self.outcome.latencies.saturating_record(now - due);
            self.outcome.unanswered += 1;
        }
    }

    pub(super) fn finish(mut self, unfinished: usize) -> Outcome {
        self.outcome.answered = self.counts.transactions.load(Ordering::Relaxed);
        self.outcome.failures = self.counts.failures.load(Ordering::Relaxed);
        self.outcome.unfinished = unfinished;
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
