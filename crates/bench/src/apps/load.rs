//! The load on servers that have no generator of their own, and for open loops.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{self, Connections, Engine, LoadError, Options, Request};

/// Where the server listens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Target {
    /// A port of 127.0.0.1.
    Port(u16),
    /// A UNIX socket.
    Path(PathBuf),
}

/// What to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Where the server listens.
    pub target: Target,
    /// What is asked of it.
    pub request: Request,
    /// Connections.
    pub connections: u32,
    /// Those of them on which a request is under way; the one that has rested longest is next.
    pub active: u32,
    /// Not measured.
    pub warm_up: Duration,
    /// Measured.
    pub window: Duration,
    /// Requests per second in an open loop.
    pub rate: Option<f64>,
}

/// What came of it, as printed in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Requests per second in the window.
    pub requests_per_s: f64,
    /// Requests of window and warm-up.
    pub requests: u64,
    /// Median time of a request in the window, microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same, unless there are fewer than a hundred.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the same, unless there are fewer than a thousand.
    pub p999_us: Option<f64>,
    /// CPU time of the client, seconds, if its start is not to be counted.
    pub cpu_s: Option<f64>,
}

/// Makes the load.
pub fn run(task: &Task) -> Result<Report, LoadError> {
    let options = Options {
        engine: Engine::Epoll, // by calls that a preload library sees
        target: match &task.target {
            Target::Port(port) => load::Target::Tcp((Ipv4Addr::LOCALHOST, *port).into()),
            Target::Path(path) => load::Target::Unix(path.clone()),
        },
        request: task.request,
        instead: None,
        lifetime: Connections::Kept,
        connections: task.connections as usize,
        active: task.active as usize,
        rate: task.rate,
        spin: false,
        warm_up: task.warm_up,
        window: task.window,
    };
    // What is due in the window of an open loop may be answered after it, but not for ever.
    let patience = if task.rate.is_some() { task.window } else { Duration::ZERO };
    let load::Outcome { latencies: times, answered_in_window, answered, .. } = load::run(&options, patience)?;
    let quantile = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    let of_enough = |count: u64, share: f64| (times.len() >= count).then(|| quantile(share));
    Ok(Report {
        requests_per_s: answered_in_window as f64 / task.window.as_secs_f64(),
        requests: answered,
        p50_us: quantile(0.5),
        p99_us: of_enough(100, 0.99),
        p999_us: of_enough(1000, 0.999),
        cpu_s: None,
    })
}
