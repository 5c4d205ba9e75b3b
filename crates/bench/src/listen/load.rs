//! The load: short connections with one request each, at a rate or as fast as answers come.

use crate::Reason;
use crate::part::{Part, print};
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{self, Connections, Engine, LoadError, Options, Request, Target};

/// What to ask of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Where it listens.
    pub server: SocketAddr,
    /// Connections a second, begun whether or not earlier ones were answered; else so many at a time.
    pub pace: Pace,
    /// For how long connections are begun.
    pub length: Duration,
    /// Every so many requests asks for `BLOCKING` instead of `/`; 0: none.
    pub blocking_every: u64,
}

/// How connections are begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// An open loop: so many a second.
    Rate(u64),
    /// A closed loop: so many at a time.
    AtATime(usize),
}

/// What came of it. Latencies are of requests for `/`, from when their connection was due to the end of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Connections that were answered whole, per second.
    pub connections_per_s: f64,
    /// How many.
    pub answered: u64,
    /// Connections refused, reset, or closed without a whole answer.
    pub errors: u64,
    /// Those without an answer `PATIENCE` after the last was begun.
    pub unfinished: u64,
    /// Latencies of more than `SLOW`.
    pub slow: u64,
    /// Latencies of more than `STUCK`; records before it was counted have none.
    #[serde(default)]
    pub stuck: u64,
    /// The median latency, microseconds.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
}

/// The path that blocks the worker of [`super::server`].
pub(super) const BLOCKING: &str = "/block";
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A latency that a user would notice beside the others.
const SLOW: Duration = Duration::from_millis(10);
/// A latency that only a worker that does not go on causes, not one that waits for a CPU.
const STUCK: Duration = Duration::from_millis(400);
/// Connections at a time.
const MOST: usize = 20_000;

impl Part for Task {
    const NAME: &'static str = "listen-load";

    fn run(self) -> Result<(), Reason> {
        print(&run(&self)?)
    }
}

/// Makes the connections.
///
/// # Errors
///
/// This process cannot have its sockets, or the server answers nothing of use.
pub fn run(task: &Task) -> Result<Outcome, LoadError> {
    crate::child::raise_descriptor_limit().map_err(LoadError::Client)?;
    let (connections, rate) = match task.pace {
        Pace::Rate(rate) => (MOST, Some(rate.max(1) as f64)),
        Pace::AtATime(count) => (count.min(MOST), None),
    };
    let options = Options {
        engine: Engine::Epoll,
        target: Target::Tcp(task.server),
        request: Request::HttpOnce("/"),
        instead: (task.blocking_every > 0).then_some((task.blocking_every, Request::HttpOnce(BLOCKING))),
        lifetime: Connections::Short,
        connections,
        active: connections,
        rate,
        spin: false,
        warm_up: Duration::ZERO,
        window: task.length,
    };
    let load::Outcome { latencies: times, answered, failures, unfinished, .. } =
        load::run(&options, PATIENCE)?;
    let over = |time: Duration| times.len() - times.count_between(0, time.as_nanos() as u64);
    let quantile = |share| times.value_at_quantile(share) as f64 / 1e3;
    Ok(Outcome {
        connections_per_s: answered as f64 / task.length.as_secs_f64(),
        answered,
        errors: failures,
        unfinished: unfinished as u64,
        slow: over(SLOW),
        stuck: over(STUCK),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
    })
}
