//! What the load reports as a process that does nothing else.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sys::file::raise_open_files;

use super::Options;
use crate::Reason;
use crate::part::{Part, print};

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
    /// Requests without an answer at the end.
    pub unanswered: u64,
    /// Latencies of more than 10 ms: a user would notice them beside the others.
    pub slow: u64,
    /// Latencies of more than 400 ms: only a worker that does not go on causes them, not one that waits for a CPU.
    pub stuck: u64,
}

impl Report {
    /// Of the latencies of a window, in nanoseconds, and of all requests that were answered, in it and at all.
    pub(crate) fn of(latencies: &Histogram<u64>, window: Duration, in_window: u64, answered: u64) -> Self {
        let over = |nanoseconds| latencies.len() - latencies.count_between(0, nanoseconds);
        let quantile = |share, least| {
            (latencies.len() >= least).then(|| latencies.value_at_quantile(share) as f64 / 1e3)
        };
        Self {
            requests_per_s: in_window as f64 / window.as_secs_f64(),
            requests: answered as f64,
            p50_us: quantile(0.5, 1),
            p99_us: quantile(0.99, 100),
            p999_us: quantile(0.999, 1000),
            slow: over(10_000_000),
            stuck: over(400_000_000),
            ..Self::default()
        }
    }
}

impl Part for Options {
    const NAME: &'static str = "load";

    fn run(self) -> Result<(), Reason> {
        raise_open_files(u64::MAX)?;
        let all = super::run(&self)?;
        let report = Report::of(&all.latencies, self.window, all.answered_in_window, all.answered);
        print(&Report { failures: all.failures, unanswered: all.unanswered, ..report })
    }
}
