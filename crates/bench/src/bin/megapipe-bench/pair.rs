//! `megapipe-bench pingpong` and `megapipe-bench stream`: what carries bytes between two processes.

use std::error::Error;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::pair::record::Record;
use bench::pair::{self, Placement, Plan, Scenario, Task, Transport, plot, table};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::flags::{
    Extent, PROGRAM, Unusable, command_line, json_file, one_of, placements, svg_file, up_to_two_cpus, whole,
};
use super::part_ended;
use super::report::{Report, View};

#[derive(Args)]
pub(super) struct Pingpong {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
pub(super) struct Stream {
    #[command(flatten)]
    common: Common,
    /// Bytes of the shared buffer that memcpy copies through: a power of two from 4096 to 16777216
    #[arg(long, value_name = "BYTES", default_value = "262144", value_parser = ring_bytes)]
    ring_bytes: usize,
}

#[derive(Args)]
struct Common {
    /// What to compare [default: all that the scenario has]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = transport_parser())]
    transports: Vec<Transport>,
    /// Bytes of a message, up to 1 MiB
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "8,64,512,4096,65536,1048576")]
    #[arg(value_parser = whole(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Where the processes run: two-cores, one-core, oversubscribed (four busy processes per CPU
    /// beside them), asleep (one message a millisecond) [default: all, or one-core with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Placement::ALL, Placement::name))]
    placements: Vec<Placement>,
    /// The two CPUs, such as 0,1; one-core takes the first of them [default: the first and the last
    /// CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    #[command(flatten)]
    extent: Extent,
    /// Give each message bytes of its own and check every one; the figures are then of the checking,
    /// too. Fails if any transport is absent; without it, if one is absent at some points only
    #[arg(long)]
    verify: bool,
    /// Write one JSON object per line: a header, then a record per transport, point and round. Times
    /// are nanoseconds; cpu_ns_per_message is the CPU time of both processes together over the
    /// messages, two of which are a round trip
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

/// One process of a pair, as its controller starts it.
#[derive(Args)]
pub(super) struct Side {
    #[arg(long, value_parser = one_of(Scenario::ALL, Scenario::name))]
    scenario: Scenario,
    #[arg(long, value_parser = transport_parser())]
    transport: Transport,
    #[arg(long, value_parser = whole(1..=1 << 20))]
    bytes: u32,
    #[arg(long)]
    cpus: CpuSet,
    #[arg(long)]
    warm_up_ns: u64,
    #[arg(long)]
    window_ns: u64,
    #[arg(long, value_delimiter = ',')]
    descriptors: Vec<RawFd>,
    #[arg(long)]
    paced: bool,
    #[arg(long)]
    verify: bool,
    #[arg(long)]
    second: bool,
    #[arg(long)]
    peer: Option<u32>,
}

/// A process that wants a CPU all the time.
#[derive(Args)]
pub(super) struct Busy {
    #[arg(long)]
    cpu: usize,
    #[arg(long)]
    seconds: u64,
}

impl Pingpong {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        run(self.common, Scenario::Pingpong, LEAST_RING_BYTES)
    }
}

impl Stream {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        run(self.common, Scenario::Stream, self.ring_bytes)
    }
}

impl Side {
    pub(super) fn run(self) -> ExitCode {
        let task = Task {
            scenario: self.scenario,
            transport: self.transport,
            side: if self.second { pair::Side::Second } else { pair::Side::First },
            bytes: self.bytes as usize,
            cpus: self.cpus,
            warm_up: Duration::from_nanos(self.warm_up_ns),
            window: Duration::from_nanos(self.window_ns),
            paced: self.paced,
            verify: self.verify,
            peer: self.peer,
        };
        part_ended(pair::run_side(&task, &self.descriptors))
    }
}

impl Busy {
    pub(super) fn run(self) -> ExitCode {
        part_ended(pair::keep_busy(self.cpu, Duration::from_secs(self.seconds)))
    }
}

fn run(arguments: Common, scenario: Scenario, ring_bytes: usize) -> Result<bool, Box<dyn Error>> {
    let plan = plan(&arguments, scenario, ring_bytes, &CpuSet::allowed()?)?;
    let mut report = Report::begin(plan.measurements(), arguments.json, arguments.plot)?;
    let ended = pair::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
    let records = report.end(ended, &VIEW)?;
    let absent = records.iter().any(|record| matches!(record, Record::Absent(_)));
    Ok(records.iter().any(VIEW.is_measurement) && !(plan.verify && absent) && !failed_midway(&records))
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: Some(plot::draw),
    is_measurement: |record| matches!(record, Record::Pingpong(_) | Record::Stream(_)),
};

/// Whether a transport could be measured, but not always: it did not just lack what it needs.
fn failed_midway(records: &[Record]) -> bool {
    let works = |transport: Transport| {
        records.iter().any(|record| match record {
            Record::Pingpong(measured) => measured.transport == transport,
            Record::Stream(measured) => measured.transport == transport,
            Record::Header(_) | Record::Absent(_) => false,
        })
    };
    records.iter().any(|record| matches!(record, Record::Absent(absent) if works(absent.transport)))
}

fn plan(
    arguments: &Common,
    scenario: Scenario,
    ring_bytes: usize,
    allowed: &CpuSet,
) -> Result<Plan, Unusable> {
    let cpus = up_to_two_cpus(arguments.cpus.as_ref(), allowed, "--placements one-core")?;
    let placements = placements(&arguments.placements, Placement::ALL, &cpus)?;
    let transports = match arguments.transports.as_slice() {
        [] => Transport::ALL.iter().copied().filter(|one| one.takes_part_in(scenario)).collect(),
        named => named.to_vec(),
    };
    if let Some(&transport) = transports.iter().find(|transport| !transport.takes_part_in(scenario)) {
        return Err(Unusable::Scenario { transport, scenario });
    }
    let plan = Plan {
        program: PROGRAM.into(),
        command: command_line(),
        scenario,
        transports,
        sizes: arguments.sizes.iter().map(|&size| size as usize).collect(),
        placements,
        cpus,
        window: arguments.extent.seconds,
        rounds: arguments.extent.rounds,
        ring_bytes,
        verify: arguments.verify,
    };
    match plan.measurements() {
        0 => Err(Unusable::NoTransport),
        _ => Ok(plan),
    }
}

fn transport_parser() -> impl TypedValueParser<Value = Transport> {
    let value = |transport: &Transport| PossibleValue::new(transport.name()).help(transport.about());
    PossibleValuesParser::new(Transport::ALL.iter().map(value))
        .map(|name| Transport::from_name(&name).expect("the parser admits transport names only"))
}

fn ring_bytes(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(bytes) if bytes.is_power_of_two() && (LEAST_RING_BYTES..=MOST_RING_BYTES).contains(&bytes) => {
            Ok(bytes)
        }
        _ => Err(format!("give a power of two from {LEAST_RING_BYTES} to {MOST_RING_BYTES}")),
    }
}

const LEAST_RING_BYTES: usize = 4096;

const MOST_RING_BYTES: usize = 16 << 20;
