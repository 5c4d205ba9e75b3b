//! The load as a process that does nothing else.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sys::file::raise_open_files;

use super::{Options, Outcome};
use crate::Reason;
use crate::part::{Part, print};

/// What such a process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// The load.
    pub options: Options,
    /// How long it waits for answers after the window.
    pub patience: Duration,
}

/// What a client measured, which our own print as JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Requests per second in the time that the client counts.
    pub requests_per_s: f64,
    /// All that were answered, to share its CPU time among.
    pub requests: f64,
    /// The median time of a request, microseconds.
    pub p50_us: Option<f64>,
    /// The 99th percentile; of fewer than 100 it would be the maximum, and is not given.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile, of 1000 at least.
    pub p999_us: Option<f64>,
    /// Its own CPU time for these requests, seconds, where its start is no small part.
    pub cpu_s: Option<f64>,
    /// Connections that failed.
    pub failures: u64,
    /// Requests under way at the end.
    pub unfinished: usize,
    /// Latencies of more than 10 ms.
    pub slow: u64,
    /// Latencies of more than 400 ms.
    pub stuck: u64,
}

impl Part for Task {
    const NAME: &'static str = "load";

    fn run(self) -> Result<(), Reason> {
        raise_open_files(u64::MAX)?;
        let Outcome { latencies, answered, answered_in_window, failures, unfinished, .. } =
            super::run(&self.options, self.patience)?;
        let over = |time: Duration| latencies.len() - latencies.count_between(0, time.as_nanos() as u64);
        let quantile = |share, least| {
            (latencies.len() >= least).then(|| latencies.value_at_quantile(share) as f64 / 1e3)
        };
        print(&Report {
            requests_per_s: answered_in_window as f64 / self.options.window.as_secs_f64(),
            requests: answered as f64,
            p50_us: quantile(0.5, 0),
            p99_us: quantile(0.99, 100),
            p999_us: quantile(0.999, 1000),
            cpu_s: None,
            failures,
            unfinished,
            slow: over(SLOW),
            stuck: over(STUCK),
        })
    }
}

/// A latency that a user would notice beside the others.
const SLOW: Duration = Duration::from_millis(10);

/// A latency that only a worker that does not go on causes, not one that waits for a CPU.
const STUCK: Duration = Duration::from_millis(400);
