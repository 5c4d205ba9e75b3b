//! `megapipe-bench tcp-engine`: the user-level TCP alone.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::cpu::CpuSet;
use bench::tcp_engine::record::Record;
use bench::tcp_engine::{self, Checksums, Figure, Plan, table};
use clap::Args;

use super::flags::{
    Extent, PROGRAM, Unusable, command_line, distinct, json_file, one_of, or_all, up_to_two_cpus, whole,
};
use super::part_ended;
use super::report::{Report, View};

#[derive(Args)]
pub(super) struct TcpEngine {
    /// What to measure: segment (one connection, beside smoltcp), flows (many connections), threads (one
    /// and two), idle (memory) [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Figure::ALL, Figure::name))]
    figures: Vec<Figure>,
    /// Bytes of a segment; flows has the first
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "64,1448")]
    #[arg(value_parser = whole(1..=1448))]
    payloads: Vec<u32>,
    /// Who sums TCP segments, for figure segment: device, software [default: both]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    #[arg(value_parser = one_of(Checksums::ALL, Checksums::name))]
    checksums: Vec<Checksums>,
    /// Connections of figure flows; rounded up to a power of two
    #[arg(long, value_name = "COUNT", default_value = "1000000", value_parser = whole(64..=4_000_000))]
    flows: u32,
    /// Connections of figure idle
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = whole(1..=1_000_000))]
    connections: u32,
    /// The CPU that is used, such as 0, and a second for figures that take two
    /// [default: the first and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    #[command(flatten)]
    extent: Extent,
    /// Write one JSON object per line: a header, then a record per figure, case and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
}

/// The process with idle connections, as its controller starts it.
#[derive(Args)]
pub(super) struct Idle {
    #[arg(long)]
    connections: u32,
}

impl Idle {
    pub(super) fn run(self) -> ExitCode {
        part_ended(tcp_engine::hold(self.connections))
    }
}

impl TcpEngine {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan(&CpuSet::allowed()?)?;
        let mut report = Report::begin(plan.measurements(), self.json, None)?;
        let ended = tcp_engine::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        Ok(!records.iter().any(|record| matches!(record, Record::Absent(_))))
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        Ok(Plan {
            program: PROGRAM.into(),
            command: command_line(),
            figures: or_all(&self.figures, Figure::ALL),
            payloads: distinct(&self.payloads).into_iter().map(|payload| payload as usize).collect(),
            checksums: or_all(&self.checksums, Checksums::ALL),
            flows: self.flows,
            burst: BURST,
            connections: self.connections,
            cpus: up_to_two_cpus(self.cpus.as_ref(), allowed, "one thread")?,
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

/// Segments that come at once in figure flows.
const BURST: usize = 32;
