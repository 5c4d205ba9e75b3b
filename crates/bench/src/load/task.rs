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

/// What it prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Those of them that were answered in the window.
    pub(crate) answered_in_window: u64,
    /// Connections that failed.
    pub(crate) failures: u64,
    /// Requests under way at the end.
    pub(crate) unfinished: usize,
    /// Latencies of more than [`SLOW`].
    pub(crate) slow: u64,
    /// Latencies of more than [`STUCK`].
    pub(crate) stuck: u64,
    /// The 50th, 99th and 99.9th percentile of the latencies, microseconds; of fewer than 100 and 1000 the last ones
    /// would be the maximum, and are not given.
    pub(crate) quantiles_us: [Option<f64>; 3],
}

impl Part for Task {
    const NAME: &'static str = "load";

    fn run(self) -> Result<(), Reason> {
        raise_open_files(u64::MAX)?;
        let Outcome { latencies, answered, answered_in_window, failures, unfinished, .. } =
            super::run(&self.options, self.patience)?;
        let over = |time: Duration| latencies.len() - latencies.count_between(0, time.as_nanos() as u64);
        let quantile = |(share, least)| {
            (latencies.len() >= least).then(|| latencies.value_at_quantile(share) as f64 / 1e3)
        };
        print(&Report {
            answered,
            answered_in_window,
            failures,
            unfinished,
            slow: over(SLOW),
            stuck: over(STUCK),
            quantiles_us: [(0.5, 0), (0.99, 100), (0.999, 1000)].map(quantile),
        })
    }
}

/// A latency that a user would notice beside the others.
const SLOW: Duration = Duration::from_millis(10);

/// A latency that only a worker that does not go on causes, not one that waits for a CPU.
const STUCK: Duration = Duration::from_millis(400);
