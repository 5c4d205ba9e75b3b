//! `megapipe-bench listen`: listen queues of unmodified servers.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::listen::load::{self, Pace};
use bench::listen::record::Record;
use bench::listen::{self, Case, Plan, Variant, channels, server, table};
use clap::Args;
use megapipe::EngineKind;

use super::apps::told;
use super::flags::{PROGRAM, Unusable, command_line, json_file, one_of, or_all, seconds, whole};
use super::report::{Report, View};
use super::{part_ended, product};

#[derive(Args)]
pub(super) struct Listen {
    /// Cases to measure [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Case::ALL, Case::name))]
    cases: Vec<Case>,
    /// Listeners to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Variant::ALL, Variant::name))]
    listeners: Vec<Variant>,
    /// Length of each load
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    length: Duration,
    /// Measurements of everything that is compared, in turn
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = whole(1..=1000))]
    rounds: u32,
    /// Write one JSON object per line: a header, then a record per case, server, listener and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
}

/// The load, as its controller starts it.
#[derive(Args)]
pub(super) struct Load {
    #[arg(long)]
    server: SocketAddr,
    #[arg(long, value_parser = seconds)]
    seconds: Duration,
    #[arg(long)]
    rate: Option<u64>,
    #[arg(long, default_value = "1")]
    at_a_time: usize,
    #[arg(long, default_value = "0")]
    blocking_every: u64,
}

/// A server whose requests can block it, as its controller starts it.
#[derive(Args)]
pub(super) struct Server {
    #[arg(long)]
    address: SocketAddr,
    #[arg(long)]
    workers: usize,
    #[arg(long)]
    blocks_ms: u64,
    #[arg(long)]
    reuseport: bool,
}

/// A server on channels, as its controller starts it.
#[derive(Args)]
pub(super) struct Channels {
    #[arg(long)]
    address: SocketAddr,
    #[arg(long)]
    workers: usize,
    #[arg(long, value_parser = one_of(&[EngineKind::Uring, EngineKind::Epoll], EngineKind::name))]
    engine: EngineKind,
    #[arg(long, value_parser = one_of(Variant::ALL, Variant::name))]
    listener: Variant,
}

/// Asks a server whose requests can block it what it has accepted.
#[derive(Args)]
pub(super) struct Counts {
    server: SocketAddr,
}

impl Listen {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = Plan {
            program: std::env::current_exe().unwrap_or(PROGRAM.into()),
            megapipe: product::megapipe().map_err(Unusable::from)?,
            command: command_line(),
            cases: or_all(&self.cases, Case::ALL),
            variants: or_all(&self.listeners, Variant::ALL),
            length: self.length,
            rounds: self.rounds,
        };
        product::library().map_err(Unusable::from)?;
        let mut report = Report::begin(plan.measurements(), self.json, None)?;
        let ended = listen::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        Ok(records.iter().any(VIEW.is_measurement))
    }
}

impl Load {
    pub(super) fn run(self) -> ExitCode {
        let Load { server, seconds: length, rate, at_a_time, blocking_every } = self;
        let pace = rate.map_or(Pace::AtATime(at_a_time), Pace::Rate);
        told(load::run(&load::Task { server, pace, length, blocking_every }))
    }
}

impl Server {
    pub(super) fn run(self) -> ExitCode {
        let Server { address, workers, blocks_ms, reuseport } = self;
        let blocks = Duration::from_millis(blocks_ms);
        part_ended(server::serve(&server::Task { address, workers, reuseport, blocks }))
    }
}

impl Channels {
    pub(super) fn run(self) -> ExitCode {
        let Channels { address, workers, engine, listener: variant } = self;
        part_ended(channels::serve(&channels::Task { address, workers, engine, variant }))
    }
}

impl Counts {
    pub(super) fn run(self) -> ExitCode {
        part_ended(listen::get(self.server, "/counts").map(|counts| println!("{counts}")))
    }
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: None,
    is_measurement: |record| matches!(record, Record::Measurement(_)),
};
