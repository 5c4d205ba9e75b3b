//! The load generator of all scenarios: requests on connections, in a closed or an open loop.
//!
//! A connection has one request under way at a time. Closed loop, a request follows each answer.
//! Open loop, requests are due at a fixed rate, each on the connection that has rested longest, and
//! latency counts from when a request was due: a server that stalls cannot thereby postpone what
//! would have shown the stall (coordinated omission; see wrk2 and HdrHistogram).
//!
//! [`Load`] has a thread on each CPU of the client, which its controller samples. [`run`] makes the
//! load on the calling thread, for processes that do nothing else and print a [`Report`]. What carries
//! requests is epoll with the C library's own calls, which a preload library sees, or io_uring, whose
//! client costs the least: it bounds the rate at which a server of `rpc` can be seen.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cpu::{self, CpuSet};

mod bulk;
mod client;
mod epoll;
mod meter;
mod report;
mod request;
mod schedule;
mod socket;
mod uring;

use meter::{Control, Counts, Meter};
use schedule::Schedule;

pub use report::Report;
pub(crate) use request::BLOCKING;
pub use request::Request;

/// What the client runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The cheaper one, for connections that are [reset](Connections::Reset).
    IoUring,
    /// For all, and for machines that forbid io_uring.
    Epoll,
}

impl Engine {
    /// The better one of those that this machine permits for so many connections.
    pub fn best(connections: usize) -> Self {
        if uring::is_permitted(connections) { Engine::IoUring } else { Engine::Epoll }
    }
}

/// Where the server listens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Target {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A UNIX socket.
    Unix(PathBuf),
}

/// How long connections last, and what a failed one means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Connections {
    /// As long as the load; they are made before it starts. A failure ends it.
    Kept,
    /// For so many requests; then they are reset, which leaves no TIME_WAIT (MegaPipe, OSDI 2012, section 5.1). A
    /// request whose connection fails is made again; a thousand failures of a thread end the load.
    Reset(u32),
    /// For one request, and closed. Failures are counted.
    Short,
}

/// What the load is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// What the client runs on.
    pub engine: Engine,
    /// The server.
    pub target: Target,
    /// What is asked.
    pub request: Request,
    /// How long connections last.
    pub lifetime: Connections,
    /// Connections at most; at least one.
    pub connections: usize,
    /// Those of them that have a request under way in a closed loop.
    pub active: usize,
    /// Requests per second over all connections; `None` for a closed loop.
    pub rate: Option<f64>,
    /// Whether a thread with a rate polls without ever sleeping, for the sake of precise times; not where the
    /// server needs the same CPUs.
    pub spin: bool,
    /// From the start of the load to the window in which latencies are recorded.
    pub warm_up: Duration,
    /// Its length. Recorded is what completes in it, or with a rate what is due in it.
    pub window: Duration,
    /// How long answers are waited for after it; `None`: the load goes on until it is stopped.
    pub patience: Option<Duration>,
}

/// Why the load broke off.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The client's own system calls fail.
    #[error("the client cannot go on; many connections need a higher hard limit (`ulimit -Hn`)")]
    Client(#[source] io::Error),
    /// Connections fail.
    #[error("the server failed {0} connections; the last one")]
    Server(u64, #[source] io::Error),
    /// The answer to the first request is not one to it.
    #[error("the server answered with {0:?}")]
    Answer(String),
}

/// Counts and clocks at one moment; differences of two samples describe the time between.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When it was taken.
    pub at: Instant,
    /// Transactions completed since the start.
    pub transactions: u64,
    /// Connections that failed since the start.
    pub failures: u64,
    /// CPU time of all client threads since their start.
    pub cpu: Duration,
    /// The part of it in which they spun idle.
    pub spun: Duration,
}

/// What came of a load.
#[derive(Debug)]
pub struct Outcome {
    /// Nanoseconds from the send of a request in the window, or with a rate from when it was due, to its whole
    /// answer. With a rate, a request that has none at the end counts with its age.
    pub latencies: Histogram<u64>,
    /// With a rate: nanoseconds by which the client sent a request late although a connection was free. It is
    /// part of the above, and the client's own fault.
    pub lag: Histogram<u64>,
    /// Requests of the window that had no answer at the end.
    pub unanswered: u64,
    /// Requests that were answered in the window.
    pub answered_in_window: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Connections that failed.
    pub failures: u64,
}

impl Outcome {
    fn new() -> Self {
        let (latencies, lag) = (histogram(), histogram());
        Self { latencies, lag, unanswered: 0, answered_in_window: 0, answered: 0, failures: 0 }
    }

    fn add(&mut self, other: Self) {
        self.latencies += other.latencies;
        self.lag += other.lag;
        self.unanswered += other.unanswered;
        self.answered_in_window += other.answered_in_window;
        self.answered += other.answered;
        self.failures += other.failures;
    }
}

/// Makes the load on the calling thread.
pub fn run(options: &Options) -> Result<Outcome, LoadError> {
    drive(options, 0..options.connections, Meter::new(Control::new(options, 1), 0))
}

/// Client threads at work, until they are stopped.
#[derive(Debug)]
pub struct Load {
    threads: Vec<JoinHandle<Result<Outcome, LoadError>>>,
    control: Arc<Control>,
}

impl Load {
    /// Starts a thread on each CPU, which begins once it has its sockets; connections are spread evenly over them.
    pub fn start(options: &Options, cpus: &CpuSet) -> Result<Self, LoadError> {
        let control = Control::new(options, cpus.len());
        let mut load = Self { threads: Vec::with_capacity(cpus.len()), control };
        for (index, &cpu) in cpus.as_slice().iter().enumerate() {
            let first = |index| options.connections * index / cpus.len();
            let (options, numbers) = (options.clone(), first(index)..first(index + 1));
            let control = load.control.clone();
            let work = move || {
                let meter = Meter::new(control.clone(), index);
                let pinned = cpu::pin(&[cpu]).map_err(LoadError::Client);
                let ended = pinned.and_then(|()| drive(&options, numbers, meter));
                control.epoch.get_or_init(Instant::now); // is waited for, even if no thread can start
                ended
            };
            let thread = thread::Builder::new().name(format!("client-{cpu}")).spawn(work);
            load.threads.push(thread.map_err(LoadError::Client)?);
        }
        Ok(load)
    }

    /// Whether a thread has ended, which it does early only by an error.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Takes a sample of all threads.
    pub fn sample(&self) -> Result<Sample, LoadError> {
        let at = Instant::now();
        let sum = |count: fn(&Counts) -> &AtomicU64| {
            self.control.counts.iter().map(|counts| count(counts).load(Ordering::Relaxed)).sum::<u64>()
        };
        let cpu = self.threads.iter().map(clock::of_thread).sum::<io::Result<_>>();
        Ok(Sample {
            at,
            transactions: sum(|counts| &counts.transactions),
            failures: sum(|counts| &counts.failures),
            cpu: cpu.map_err(LoadError::Client)?,
            spun: Duration::from_nanos(sum(|counts| &counts.spun)),
        })
    }

    /// When latencies are recorded, once the load has started.
    pub fn window(&self) -> Range<Instant> {
        let epoch = *self.control.epoch.wait();
        epoch + Duration::from_nanos(self.control.window.start)
            ..epoch + Duration::from_nanos(self.control.window.end)
    }

    /// Stops the threads.
    pub fn stop(self) -> Result<Outcome, LoadError> {
        self.control.stop.store(true, Ordering::Relaxed);
        let mut all = Outcome::new();
        for thread in self.threads {
            let panicked = |_| LoadError::Client(io::Error::other("a client thread panicked"));
            all.add(thread.join().map_err(panicked)??);
        }
        Ok(all)
    }
}

/// Makes one thread's part of the load, until it is stopped or over.
fn drive(options: &Options, numbers: Range<usize>, meter: Meter) -> Result<Outcome, LoadError> {
    match (options.request, options.engine) {
        (Request::Upload(_) | Request::Download(_), _) => bulk::run(options, meter),
        (_, Engine::IoUring) => client::run::<uring::Ring>(options, &numbers, meter),
        (_, Engine::Epoll) => client::run::<epoll::Sockets>(options, &numbers, meter),
    }
}

/// Nanoseconds from 1 to 100 s, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds are valid")
}

/// How often a client for which nothing happens checks whether it is to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
