//! `megapipe-bench tcp` and `tcp-floor`: user-level TCP on a TUN device beside the kernel's.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::cpu::CpuSet;
use bench::tcp::record::Record;
use bench::tcp::{self, Plan, Row, Service, Side, Task, table};
use clap::Args;

use super::flags::{
    Extent, PROGRAM, Unusable, check_cpus, command_line, distinct, json_file, one_of, or_all,
};
use super::part_ended;
use super::report::{Report, View};

#[derive(Args)]
pub(super) struct Tcp {
    /// Loads to measure [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Row::ALL, Row::name))]
    rows: Vec<Row>,
    /// Servers, of those that a load compares [default: all that this program is built with]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Side::ALL, Side::name))]
    servers: Vec<Side>,
    #[command(flatten)]
    common: Common,
}

/// What the device costs before any TCP.
#[derive(Args)]
pub(super) struct Floor {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// The CPUs of the server and of the client, such as 0,1 [default: the first and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    #[command(flatten)]
    extent: Extent,
    /// Write one JSON object per line: a header, then a record per load, server and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
}

/// The server, as its controller starts it.
#[derive(Args)]
pub(super) struct Server {
    #[arg(long, value_parser = one_of(Side::ALL, Side::name))]
    side: Side,
    #[arg(long, value_parser = one_of(Service::ALL, Service::name))]
    service: Service,
    #[arg(long)]
    connections: usize,
    #[arg(long)]
    network: u64,
    #[arg(long)]
    cpus: CpuSet,
}

impl Server {
    pub(super) fn run(self) -> ExitCode {
        let Server { side, service, connections, network, cpus } = self;
        let served = tcp::serve(&Task { side, service, connections, network, cpus });
        part_ended(served.map(|never| match never {}))
    }
}

impl Tcp {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let rows = or_all(&self.rows, Row::ALL);
        self.common.run(rows, or_all(&self.servers, &Side::built()))
    }
}

impl Floor {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        self.common.run(Row::OF_FLOOR.to_vec(), vec![Side::Floor, Side::Kernel])
    }
}

impl Common {
    fn run(self, rows: Vec<Row>, sides: Vec<Side>) -> Result<bool, Box<dyn Error>> {
        let allowed = CpuSet::allowed()?;
        let cpus = self.cpus.unwrap_or_else(|| allowed.ends());
        check_cpus("--cpus", &cpus, &allowed)?;
        if cpus.len() != 2 {
            return Err(Unusable::NotTwoCpus { given: cpus }.into());
        }
        // Before there is a second thread, which could not follow.
        tcp::enter_own()?;
        let plan = Plan {
            program: PROGRAM.into(),
            command: command_line(),
            rows: distinct(&rows),
            sides,
            cpus,
            window: self.extent.seconds,
            rounds: self.extent.rounds,
        };
        let mut report = Report::begin(plan.measurements(), self.json, None)?;
        let ended = tcp::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        Ok(records.iter().any(VIEW.is_measurement))
    }
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: None,
    is_measurement: |record| matches!(record, Record::Measurement(_) | Record::Share(_)),
};
