//! What a client thread counts, and how it knows what time it is for it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::pace::Due;
use super::{FAILURES, LOOK_UP_INTERVAL, Latencies, LoadError, Options, Pace, START_INTERVAL};

/// What the controller and the threads tell each other.
#[derive(Debug)]
pub(super) struct Control {
    stop: AtomicBool,
    /// Threads that could start.
    ready: AtomicUsize,
    /// When the load started; its clock counts from there.
    epoch: OnceLock<Instant>,
    /// The window in which latencies are recorded, nanoseconds by that clock.
    window: Range<u64>,
}

impl Control {
    pub(super) fn new(warm_up: Duration, window: Duration) -> Self {
        let (from, to) = (warm_up.as_nanos() as u64, (warm_up + window).as_nanos() as u64);
        Self {
            stop: AtomicBool::new(false),
            ready: AtomicUsize::new(0),
            epoch: OnceLock::new(),
            window: from..to,
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn are_ready(&self, threads: usize) -> bool {
        self.ready.load(Ordering::Relaxed) >= threads
    }

    pub(super) fn start(&self) {
        self.epoch.get_or_init(Instant::now);
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
    pub(super) connections: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Nanoseconds of turns in which a thread that does not sleep found nothing to do.
    pub(super) spun: AtomicU64,
}

/// How a thread waits for what comes next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wait {
    /// In the kernel, for so long at most.
    Within(Duration),
    /// Not at all.
    Spin,
}

/// A thread's counts, latencies and schedule.
pub(super) struct Meter {
    counts: Arc<Counts>,
    control: Arc<Control>,
    /// The control's, once the load has started.
    epoch: Instant,
    latencies: Latencies,
    pace: Option<Pace>,
    spin: bool,
    /// When the last turn of a spinning thread began.
    turned: u64,
}

impl Meter {
    pub(super) fn new(counts: Arc<Counts>, control: Arc<Control>) -> Self {
        let latencies = Latencies::new();
        Self { counts, control, epoch: Instant::now(), latencies, pace: None, spin: false, turned: 0 }
    }

    /// Waits for the start of the load, and begins the schedule if there is one. `numbers` are those
    /// of the thread's connections.
    pub(super) fn start(&mut self, options: &Options, numbers: &Range<usize>) {
        let pace = |rate| Pace::new(rate, options.connections, numbers.start, numbers.len());
        self.pace = options.rate.map(pace);
        self.spin = options.spin && self.is_paced();
        self.control.ready.fetch_add(1, Ordering::Relaxed);
        while !self.stopped() {
            if let Some(&epoch) = self.control.epoch.get() {
                self.epoch = epoch;
                return;
            }
            thread::sleep(START_INTERVAL);
        }
    }

    pub(super) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    pub(super) fn stopped(&self) -> bool {
        self.control.stop.load(Ordering::Relaxed)
    }

    /// Nanoseconds since the start of the load.
    pub(super) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// How the thread is to wait for its next event.
    pub(super) fn wait(&self) -> Wait {
        match &self.pace {
            None => Wait::Within(LOOK_UP_INTERVAL),
            Some(_) if self.spin => Wait::Spin,
            Some(pace) => {
                let left = Duration::from_nanos(pace.next().saturating_sub(self.now()));
                Wait::Within(left.min(LOOK_UP_INTERVAL))
            }
        }
    }

    /// When the next request of a connection that has none under way begins: now without a
    /// schedule; `None` if it is not due yet, and [`due`](Self::due) will name it.
    pub(super) fn follow(&mut self, index: usize) -> Option<u64> {
        let now = self.now();
        match &mut self.pace {
            None => Some(now),
            Some(pace) => pace.follow(index, now),
        }
    }

    /// A request of the schedule whose time has come and whose connection is free.
    pub(super) fn due(&mut self) -> Option<Due> {
        let pace = self.pace.as_mut()?;
        let now = self.epoch.elapsed().as_nanos() as u64;
        let due = pace.due(now)?;
        if self.control.window.contains(&due.at) {
            self.latencies.lag.saturating_record(now - due.at);
        }
        Some(due)
    }

    /// Ends a turn of the thread's loop.
    pub(super) fn turn(&mut self, worked: bool) {
        if self.spin {
            let now = self.now();
            if !worked {
                add(&self.counts.spun, (now - self.turned).min(IDLE_TURN_MOST));
            }
            self.turned = now;
        }
    }

    pub(super) fn transaction(&mut self, began: u64, ended: u64) {
        add(&self.counts.transactions, 1);
        let moment = if self.is_paced() { began } else { ended };
        if self.control.window.contains(&moment) {
            self.latencies.response.saturating_record(ended - began);
        }
    }

    pub(super) fn connection(&self) {
        add(&self.counts.connections, 1);
    }

    /// Counts a failed connection; one too many ends the thread.
    pub(super) fn failure(&self, cause: io::Error) -> Result<(), LoadError> {
        match add(&self.counts.failures, 1) {
            FAILURES.. => Err(LoadError::Server(cause)),
            _ => Ok(()),
        }
    }

    /// What was recorded, with what is still unanswered.
    pub(super) fn finish(mut self) -> Latencies {
        let now = self.now();
        if let Some(pace) = &self.pace {
            let Range { start, end } = self.control.window;
            for due in pace.unanswered(start, end.min(now)) {
                self.latencies.response.saturating_record(now - due);
                self.latencies.unanswered += 1;
            }
        }
        self.latencies
    }
}

/// Adds to a counter that only the caller writes: no locked instruction.
fn add(counter: &AtomicU64, more: u64) -> u64 {
    let count = counter.load(Ordering::Relaxed) + more;
    counter.store(count, Ordering::Relaxed);
    count
}

/// What takes longer than this was no turn, but another process or an interrupt.
const IDLE_TURN_MOST: u64 = 10_000;
