//! The load on servers that have no generator of their own, and for open loops.

use crate::Reason;
use crate::part::{Part, print};
use std::time::Duration;

use super::output::Report;
use crate::load::{self, LoadError, Options};

impl Part for Options {
    const NAME: &'static str = "app-load";

    fn run(self) -> Result<(), Reason> {
        print(&run(&self)?)
    }
}

/// Makes the load.
fn run(options: &Options) -> Result<Report, LoadError> {
    // What is due in the window of an open loop may be answered after it, but not for ever.
    let patience = if options.rate.is_some() { options.window } else { Duration::ZERO };
    let load::Outcome { latencies: times, answered_in_window, answered, .. } = load::run(options, patience)?;
    // Of fewer it would be their maximum.
    let of_enough =
        |count: u64, share: f64| (times.len() >= count).then(|| times.value_at_quantile(share) as f64 / 1e3);
    Ok(Report {
        requests_per_s: answered_in_window as f64 / options.window.as_secs_f64(),
        requests: answered as f64,
        p50_us: of_enough(0, 0.5),
        p99_us: of_enough(100, 0.99),
        p999_us: of_enough(1000, 0.999),
        cpu_s: None,
    })
}
