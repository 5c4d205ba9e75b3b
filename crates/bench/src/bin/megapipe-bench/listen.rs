//! `megapipe-bench listen`: listen queues of unmodified servers.

use std::error::Error;
use std::time::Duration;

use bench::listen::{self, Case, Plan, Variant};
use bench::record::Record;
use clap::Args;

use super::flags::{PROGRAM, command_line, or_all, seconds};
use super::product;
use super::report::Report;

#[derive(Args)]
pub(super) struct Listen {
    /// Cases to measure [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    cases: Vec<Case>,
    /// Listeners to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    listeners: Vec<Variant>,
    /// Length of each load
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    length: Duration,
    #[command(flatten)]
    report: Report,
}

impl Listen {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = Plan {
            program: std::env::current_exe().unwrap_or(PROGRAM.into()),
            megapipe: product::megapipe()?,
            command: command_line(),
            cases: or_all(&self.cases, Case::ALL),
            variants: or_all(&self.listeners, Variant::ALL),
            length: self.length,
            rounds: self.report.rounds,
        };
        product::library()?;
        let records =
            self.report.of(plan.measurements(), None, |stop, listener| listen::run(&plan, stop, listener))?;
        Ok(records.iter().any(Record::is_measurement))
    }
}
