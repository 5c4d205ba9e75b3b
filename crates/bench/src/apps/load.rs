//! The load on servers that have no generator of their own, and for open loops.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{self, LoadError, Options};

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
pub fn run(options: &Options) -> Result<Report, LoadError> {
    // What is due in the window of an open loop may be answered after it, but not for ever.
    let patience = if options.rate.is_some() { options.window } else { Duration::ZERO };
    let load::Outcome { latencies: times, answered_in_window, answered, .. } = load::run(options, patience)?;
    let quantile = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    let of_enough = |count: u64, share: f64| (times.len() >= count).then(|| quantile(share));
    Ok(Report {
        requests_per_s: answered_in_window as f64 / options.window.as_secs_f64(),
        requests: answered,
        p50_us: quantile(0.5),
        p99_us: of_enough(100, 0.99),
        p999_us: of_enough(1000, 0.999),
        cpu_s: None,
    })
}
