//! `megapipe-bench tcp`: user-level TCP on a TUN device beside the kernel's.

use std::error::Error;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::record::Record;
use bench::tcp::{self, Plan, Row, Side};
use clap::Args;

use super::flags::{PROGRAM, command_line, or_all, seconds, two_cpus};
use super::report::Report;

#[derive(Args)]
pub(super) struct Tcp {
    /// Loads to measure [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    rows: Vec<Row>,
    /// Servers, of those that a load compares [default: all that this program is built with]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    servers: Vec<Side>,
    /// The CPUs of the server and of the client, such as 0,1 [default: the first and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    #[command(flatten)]
    report: Report,
}

impl Tcp {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let cpus = two_cpus(self.cpus.as_ref())?;
        // Before there is a second thread, which could not follow.
        tcp::enter_own()?;
        let plan = Plan {
            program: PROGRAM.into(),
            command: command_line(),
            rows: or_all(&self.rows, Row::ALL),
            sides: or_all(&self.servers, &Side::built()),
            cpus,
            window: self.seconds,
            rounds: self.report.rounds,
        };
        let records =
            self.report.of(plan.measurements(), None, |stop, listener| tcp::run(&plan, stop, listener))?;
        Ok(records.iter().any(Record::is_measurement))
    }
}
