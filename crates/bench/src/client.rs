//! The load: one client process, one pinned thread per client CPU.
//!
//! Each connection sends a request of `size` bytes, waits for a response of `size` bytes, and
//! after `transactions` of these is reset and opened anew (closing with RST leaves no TIME_WAIT;
//! MegaPipe, OSDI 2012, section 5.1). The same client is used for every server, and it is made as
//! cheap as it can be, since its cost bounds the rate at which a server can be seen.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cpu::{self, CpuSet};

mod epoll;
mod socket;
mod uring;

/// What the client runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The cheaper one.
    IoUring,
    /// For machines that forbid io_uring.
    Epoll,
}

impl Engine {
    /// The better one of those that this machine permits for so many connections.
    pub fn best(connections: usize) -> Self {
        match uring::is_permitted(connections) {
            true => Engine::IoUring,
            false => Engine::Epoll,
        }
    }
}

/// What the client is to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// What it runs on.
    pub engine: Engine,
    /// The server.
    pub target: SocketAddr,
    /// Transactions on a connection before it is reset; at least one.
    pub transactions: u32,
    /// Bytes of a request and of its response; at least one.
    pub size: usize,
    /// Concurrent connections over all threads; at least one.
    pub connections: usize,
    /// One thread is pinned to each of these.
    pub cpus: CpuSet,
}

/// Why the load broke off.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A thread cannot be started, pinned, or its clock read.
    #[error("cannot run a client thread")]
    Thread(#[source] io::Error),
    /// The client's own system calls fail.
    #[error("the client cannot go on; many connections need a higher hard limit (`ulimit -Hn`)")]
    Client(#[source] io::Error),
    /// Connections fail again and again.
    #[error("the server failed {FAILURES} connections; the last one")]
    Server(#[source] io::Error),
    /// A client thread panicked.
    #[error("a client thread panicked")]
    Panicked,
}

/// Counts and clocks at one moment; differences of two samples describe the time between.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When it was taken.
    pub at: Instant,
    /// Transactions completed since the start.
    pub transactions: u64,
    /// Connections completed since the start.
    pub connections: u64,
    /// Connections that failed since the start.
    pub failures: u64,
    /// CPU time of all client threads since their start.
    pub cpu: Duration,
}

/// Client threads at work; dropping it stops them.
#[derive(Debug)]
pub struct Load {
    threads: Vec<Running>,
    control: Arc<Control>,
}

#[derive(Debug)]
struct Running {
    handle: JoinHandle<Result<Histogram<u64>, LoadError>>,
    counts: Arc<Counts>,
}

impl Load {
    /// Starts the threads; connections are spread evenly over them.
    pub fn start(options: &Options) -> Result<Self, LoadError> {
        let control = Arc::new(Control::default());
        let cpus = options.cpus.as_slice();
        let mut load = Self { threads: Vec::with_capacity(cpus.len()), control };
        for (index, &cpu) in cpus.iter().enumerate() {
            let share = (options.connections + index) / cpus.len();
            let counts = Arc::new(Counts::default());
            let mut meter = Meter::new(counts.clone(), load.control.clone());
            let options = options.clone();
            let handle = thread::Builder::new()
                .name(format!("client-{cpu}"))
                .spawn(move || {
                    cpu::pin(&[cpu]).map_err(LoadError::Thread)?;
                    match options.engine {
                        Engine::IoUring => uring::run(&options, share, &mut meter)?,
                        Engine::Epoll => epoll::run(&options, share, &mut meter)?,
                    }
                    Ok(meter.latencies)
                })
                .map_err(LoadError::Thread)?;
            load.threads.push(Running { handle, counts });
        }
        Ok(load)
    }

    /// Whether a thread has ended, which it does early only by an error.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(|running| running.handle.is_finished())
    }

    /// Takes a sample of all threads.
    pub fn sample(&self) -> Result<Sample, LoadError> {
        let mut sample =
            Sample { at: Instant::now(), transactions: 0, connections: 0, failures: 0, cpu: Duration::ZERO };
        for Running { handle, counts } in &self.threads {
            sample.transactions += counts.transactions.load(Ordering::Relaxed);
            sample.connections += counts.connections.load(Ordering::Relaxed);
            sample.failures += counts.failures.load(Ordering::Relaxed);
            sample.cpu += clock::of_thread(handle).map_err(LoadError::Thread)?;
        }
        Ok(sample)
    }

    /// From now on latencies are recorded, or no longer.
    pub fn record_latencies(&self, on: bool) {
        self.control.recording.store(on, Ordering::Relaxed);
    }

    /// Stops the threads; returns the latencies recorded, in nanoseconds.
    pub fn stop(mut self) -> Result<Histogram<u64>, LoadError> {
        self.control.stop.store(true, Ordering::Relaxed);
        let mut all = latencies();
        for running in self.threads.drain(..) {
            let recorded = running.handle.join().map_err(|_| LoadError::Panicked)??;
            all += recorded;
        }
        Ok(all)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        for running in self.threads.drain(..) {
            // Whoever wanted the outcome has called `stop`.
            let _ = running.handle.join();
        }
    }
}

/// What the controller tells all threads.
#[derive(Debug, Default)]
struct Control {
    stop: AtomicBool,
    recording: AtomicBool,
}

/// What a thread has done; written by it alone, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts {
    transactions: AtomicU64,
    connections: AtomicU64,
    failures: AtomicU64,
}

/// A thread's counts and latencies.
struct Meter {
    counts: Arc<Counts>,
    control: Arc<Control>,
    latencies: Histogram<u64>,
    epoch: Instant,
}

impl Meter {
    fn new(counts: Arc<Counts>, control: Arc<Control>) -> Self {
        Self { counts, control, latencies: latencies(), epoch: Instant::now() }
    }

    fn stopped(&self) -> bool {
        self.control.stop.load(Ordering::Relaxed)
    }

    /// Nanoseconds since the thread's start.
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn transaction(&mut self, began: u64, ended: u64) {
        increment(&self.counts.transactions);
        if self.control.recording.load(Ordering::Relaxed) {
            self.latencies.saturating_record(ended - began);
        }
    }

    fn connection(&self) {
        increment(&self.counts.connections);
    }

    /// Counts a failed connection; one too many ends the thread.
    fn failure(&self, cause: io::Error) -> Result<(), LoadError> {
        match increment(&self.counts.failures) {
            FAILURES.. => Err(LoadError::Server(cause)),
            _ => Ok(()),
        }
    }
}

/// Adds one to a counter that only the caller writes: no locked instruction.
fn increment(counter: &AtomicU64) -> u64 {
    let count = counter.load(Ordering::Relaxed) + 1;
    counter.store(count, Ordering::Relaxed);
    count
}

/// Nanoseconds from 1 to 100 s, to three digits.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds are valid")
}

/// How often a client for which nothing happens looks whether it is to stop.
const LOOK_UP_INTERVAL: Duration = Duration::from_millis(50);

/// Failed connections after which a thread gives up.
const FAILURES: u64 = 1000;
