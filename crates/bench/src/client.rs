//! The load: one client process, one pinned thread per client CPU.
//!
//! Each connection sends a request of `size` bytes, waits for a response of `size` bytes, and
//! after `transactions` of these is reset and opened anew (closing with RST leaves no TIME_WAIT;
//! MegaPipe, OSDI 2012, section 5.1). The same client is used for every server, and it is made as
//! cheap as it can be, since its cost bounds the rate at which a server can be seen.
//!
//! Closed loop, a connection sends its next request once it has the response. Open loop, requests
//! are due at a fixed rate, and latency counts from when a request was due.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cpu::{self, CpuSet};

mod epoll;
mod meter;
mod pace;
mod socket;
mod uring;

use meter::{Control, Counts, Meter};
use pace::Pace;

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
    /// Requests per second over all connections; `None` for a closed loop.
    pub rate: Option<u64>,
    /// Whether a thread with a rate looks for what comes without ever sleeping, for the sake of
    /// precise times; not where the server needs the same CPUs.
    pub spin: bool,
    /// From the start of the load to the window in which latencies are recorded.
    pub warm_up: Duration,
    /// Its length. Recorded is what completes in it, or with a rate what is due in it.
    pub window: Duration,
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
    /// The part of it in which they spun idle.
    pub spun: Duration,
}

/// What the requests of the recorded time met with.
#[derive(Debug)]
pub struct Latencies {
    /// Nanoseconds from the send of a request, or with a rate from when it was due, to its whole
    /// response. A request that has none at the end counts with its age.
    pub response: Histogram<u64>,
    /// With a rate: nanoseconds by which the client sent a request late although its connection was
    /// free. It is part of the above, and the client's own fault.
    pub lag: Histogram<u64>,
    /// With a rate: requests that had no response at the end.
    pub unanswered: u64,
}

impl Latencies {
    fn new() -> Self {
        Self { response: histogram(), lag: histogram(), unanswered: 0 }
    }
}

/// Client threads at work; dropping it stops them.
#[derive(Debug)]
pub struct Load {
    threads: Vec<Running>,
    control: Arc<Control>,
}

#[derive(Debug)]
struct Running {
    handle: JoinHandle<Result<Latencies, LoadError>>,
    counts: Arc<Counts>,
}

impl Load {
    /// Starts the threads; connections are spread evenly over them. The load starts when all threads
    /// have their sockets.
    pub fn start(options: &Options) -> Result<Self, LoadError> {
        let control = Arc::new(Control::new(options.warm_up, options.window));
        let cpus = options.cpus.as_slice();
        let mut load = Self { threads: Vec::with_capacity(cpus.len()), control };
        let mut first = 0;
        for (index, &cpu) in cpus.iter().enumerate() {
            let share = (options.connections + index) / cpus.len();
            let counts = Arc::new(Counts::default());
            let mut meter = Meter::new(counts.clone(), load.control.clone());
            let options = options.clone();
            let numbers = first..first + share;
            first += share;
            let handle = thread::Builder::new()
                .name(format!("client-{cpu}"))
                .spawn(move || {
                    cpu::pin(&[cpu]).map_err(LoadError::Thread)?;
                    match options.engine {
                        Engine::IoUring => uring::run(&options, numbers, &mut meter)?,
                        Engine::Epoll => epoll::run(&options, numbers, &mut meter)?,
                    }
                    Ok(meter.finish())
                })
                .map_err(LoadError::Thread)?;
            load.threads.push(Running { handle, counts });
        }
        while !load.control.are_ready(cpus.len()) && !load.is_broken() {
            thread::sleep(START_INTERVAL);
        }
        load.control.start();
        Ok(load)
    }

    /// Whether a thread has ended, which it does early only by an error.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(|running| running.handle.is_finished())
    }

    /// Takes a sample of all threads.
    pub fn sample(&self) -> Result<Sample, LoadError> {
        let mut sample = Sample {
            at: Instant::now(),
            transactions: 0,
            connections: 0,
            failures: 0,
            cpu: Duration::ZERO,
            spun: Duration::ZERO,
        };
        for Running { handle, counts } in &self.threads {
            sample.transactions += counts.transactions.load(Ordering::Relaxed);
            sample.connections += counts.connections.load(Ordering::Relaxed);
            sample.failures += counts.failures.load(Ordering::Relaxed);
            sample.cpu += clock::of_thread(handle).map_err(LoadError::Thread)?;
            sample.spun += Duration::from_nanos(counts.spun.load(Ordering::Relaxed));
        }
        Ok(sample)
    }

    /// When latencies are recorded.
    pub fn window(&self) -> Range<Instant> {
        self.control.window()
    }

    /// Stops the threads; returns the latencies recorded.
    pub fn stop(mut self) -> Result<Latencies, LoadError> {
        self.control.stop();
        let mut all = Latencies::new();
        for running in self.threads.drain(..) {
            let recorded = running.handle.join().map_err(|_| LoadError::Panicked)??;
            all.response += recorded.response;
            all.lag += recorded.lag;
            all.unanswered += recorded.unanswered;
        }
        Ok(all)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.control.stop();
        for running in self.threads.drain(..) {
            // Whoever wanted the outcome has called `stop`.
            let _ = running.handle.join();
        }
    }
}

/// Nanoseconds from 1 to 100 s, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds are valid")
}

/// How often a client for which nothing happens looks whether it is to stop.
const LOOK_UP_INTERVAL: Duration = Duration::from_millis(50);

/// How often threads and controller look whether the others are ready to start.
const START_INTERVAL: Duration = Duration::from_micros(200);

/// Failed connections after which a thread gives up.
const FAILURES: u64 = 1000;
