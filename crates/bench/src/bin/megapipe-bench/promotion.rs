//! `megapipe-bench promotion`: what it costs to move connections to shared memory.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::cpu::CpuSet;
use bench::promotion::record::Record;
use bench::promotion::{self, Figure, Plan, Task, table};
use clap::Args;

use super::flags::{
    Extent, PROGRAM, Unusable, command_line, json_file, one_of, or_all, up_to_two_cpus, whole,
};
use super::part_ended;
use super::report::{Report, View};
use crate::product;

#[derive(Args)]
pub(super) struct Promotion {
    /// What to measure: cost (CPU time of a promotion), load (throughput of other traffic meanwhile),
    /// idle (round trips beside idle promoted connections), memory [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Figure::ALL, Figure::name))]
    figures: Vec<Figure>,
    /// Promotions whose cost is measured, one at a time and again many at once
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = whole(1..=5_000))]
    promotions: u32,
    /// Promotions per second beside other traffic; together with --seconds at most 10000
    #[arg(long, value_name = "NUMBER", default_value = "1000", value_parser = whole(1..=10_000))]
    rate: u32,
    /// Idle promoted connections, up to 10000
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = whole(1..=10_000))]
    connections: u32,
    /// The CPUs of the two processes, such as 0,1, or one for both; the monitor runs on any
    /// [default: the first and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    #[command(flatten)]
    extent: Extent,
    /// Write one JSON object per line: a header, then a record per figure and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
}

/// One of the two processes, as its controller starts it.
#[derive(Args)]
pub(super) struct Side {
    #[arg(long)]
    cpus: CpuSet,
    #[arg(long)]
    port: Option<u16>,
    #[arg(long)]
    monitor: Option<PathBuf>,
    #[arg(long)]
    no_spin: bool,
}

impl Side {
    pub(super) fn run(self) -> ExitCode {
        let Side { cpus, port, monitor, no_spin } = self;
        part_ended(promotion::run_side(&Task { cpus, port, monitor, no_spin }))
    }
}

impl Promotion {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan(&CpuSet::allowed()?)?;
        let mut report = Report::begin(plan.measurements(), self.json, None)?;
        let ended = promotion::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        Ok(!records.iter().any(|record| matches!(record, Record::Absent(_))))
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        let cpus = up_to_two_cpus(self.cpus.as_ref(), allowed, "both processes")?;
        let figures = or_all(&self.figures, Figure::ALL);
        if figures.contains(&Figure::Load)
            && f64::from(self.rate) * self.extent.seconds.as_secs_f64() > MOST_CONNECTIONS
        {
            return Err(Unusable::TooManyPromotions { rate: self.rate, seconds: self.extent.seconds });
        }
        Ok(Plan {
            program: PROGRAM.into(),
            megapipe: product::megapipe()?,
            command: command_line(),
            figures,
            cpus,
            promotions: self.promotions as usize,
            rate: self.rate,
            connections: self.connections as usize,
            window: self.extent.seconds,
            rounds: self.extent.rounds,
        })
    }
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: None,
    is_measurement: |record| !matches!(record, Record::Header(_) | Record::Absent(_)),
};

/// Of each side at once.
const MOST_CONNECTIONS: f64 = 10_000.0;
