//! `megapipe bench pingpong` and `megapipe bench stream`: what carries bytes between two processes.

use std::error::Error;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::bench::cpu::CpuSet;
use ::bench::pair::record::Record;
use ::bench::pair::{self, CACHELINE_PAYLOAD, Placement, Plan, Progress, Scenario, Task, Transport};
use ::bench::rpc::Outcome;
use ::bench::{plot, with_causes};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::{Extent, INTERRUPTED, JsonLines, check_cpus, print, progress_bar, stop_on_signal, whole};

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
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = placement_parser())]
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
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// One process of a pair, as its controller starts it.
#[derive(Args)]
pub(super) struct Side {
    #[arg(long, value_parser = PossibleValuesParser::new(["pingpong", "stream"]))]
    scenario: String,
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

/// A flag that is well-formed, yet says nothing in this scenario or on this machine.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Cpu(#[from] super::Unusable),
    #[error("--cpus: {given} are {} CPUs; give two, or one for --placements one-core", given.len())]
    TooManyCpus { given: CpuSet },
    #[error(
        "--placements: {} takes two CPUs, and there is CPU {given} alone; give two --cpus, or one-core",
        placement.name()
    )]
    TooFewCpus { placement: Placement, given: CpuSet },
    #[error(
        "--transports: {transport} is no part of {}: cacheline is for pingpong, memcpy for stream",
        scenario.name()
    )]
    Scenario { transport: Transport, scenario: Scenario },
    #[error(
        "nothing to measure: cacheline takes messages up to {CACHELINE_PAYLOAD} B, cacheline and memcpy are limits of \
         two-cores, and tcp-spin is never asleep; add to --transports, --sizes or --placements"
    )]
    Nothing,
}

impl Pingpong {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        run(&self.common, Scenario::Pingpong, LEAST_RING_BYTES)
    }
}

impl Stream {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        run(&self.common, Scenario::Stream, self.ring_bytes)
    }
}

impl Side {
    pub(super) fn run(self) -> ExitCode {
        let task = Task {
            scenario: Scenario::from_name(&self.scenario).expect("the parser admits scenarios only"),
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
        ended(pair::run_side(&task, &self.descriptors))
    }
}

impl Busy {
    pub(super) fn run(self) -> ExitCode {
        ended(pair::keep_busy(self.cpu, Duration::from_secs(self.seconds)))
    }
}

fn ended(result: Result<(), pair::SideError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", with_causes(&error)); // the controller says whose words these are
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Common, scenario: Scenario, ring_bytes: usize) -> Result<ExitCode, Box<dyn Error>> {
    let plan = match plan(arguments, scenario, ring_bytes, &CpuSet::allowed()?) {
        Ok(plan) => plan,
        Err(unusable) => {
            eprintln!("megapipe bench: {unusable}");
            return Ok(ExitCode::from(2));
        }
    };
    if let Some(file) = &arguments.plot {
        plot::check(file)?;
    }
    let mut json = arguments.json.clone().map(JsonLines::create).transpose()?;
    let stop = stop_on_signal()?;
    let bar = progress_bar(plan.measurements());
    let mut records = Vec::new();
    let ended = pair::run(&plan, &stop, &mut |progress| {
        match progress {
            Progress::Measuring(transport, point) => {
                bar.set_message(format!("{transport}, {}, {} B", point.placement.name(), point.bytes));
            }
            Progress::Done => bar.inc(1),
            Progress::Record(record) => {
                records.push(record.clone());
                if let Some(json) = &mut json {
                    json.write(record)?;
                }
            }
        }
        Ok(())
    });
    bar.finish_and_clear();
    let printed = print(&pair::table::render(&records));
    let outcome = ended?;
    printed?;
    let measurement = |record: &&Record| matches!(record, Record::Pingpong(_) | Record::Stream(_));
    let measured = records.iter().filter(measurement).count();
    if let Some(file) = &arguments.plot
        && measured > 0
    {
        pair::plot::draw(&records, file)?;
    }
    if outcome == Outcome::Stopped {
        eprintln!("stopped: {measured} of {} measurements kept", plan.measurements());
        return Ok(ExitCode::from(INTERRUPTED));
    }
    // The table has said why each transport is absent.
    let absent = records.iter().any(|record| matches!(record, Record::Absent(_)));
    match measured == 0 || (plan.verify && absent) || failed_midway(&records) {
        true => Ok(ExitCode::FAILURE),
        false => Ok(ExitCode::SUCCESS),
    }
}

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
    let cpus = match &arguments.cpus {
        Some(given) if given.len() > 2 => return Err(Unusable::TooManyCpus { given: given.clone() }),
        Some(given) => given.clone(),
        None => allowed.ends(),
    };
    check_cpus("--cpus", &cpus, allowed)?;
    let placements = match arguments.placements.as_slice() {
        [] => Placement::ALL.iter().copied().filter(|placement| placement.cpus() <= cpus.len()).collect(),
        named => named.to_vec(),
    };
    if let Some(&placement) = placements.iter().find(|placement| placement.cpus() > cpus.len()) {
        return Err(Unusable::TooFewCpus { placement, given: cpus });
    }
    let transports = match arguments.transports.as_slice() {
        [] => Transport::ALL.iter().copied().filter(|one| one.takes_part_in(scenario)).collect(),
        named => named.to_vec(),
    };
    if let Some(&transport) = transports.iter().find(|transport| !transport.takes_part_in(scenario)) {
        return Err(Unusable::Scenario { transport, scenario });
    }
    let plan = Plan {
        program: PathBuf::from("/proc/self/exe"),
        command: std::env::args().collect::<Vec<_>>().join(" "),
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
        0 => Err(Unusable::Nothing),
        _ => Ok(plan),
    }
}

fn transport_parser() -> impl TypedValueParser<Value = Transport> {
    let value = |transport: &Transport| PossibleValue::new(transport.name()).help(transport.about());
    PossibleValuesParser::new(Transport::ALL.iter().map(value))
        .map(|name| Transport::from_name(&name).expect("the parser admits transport names only"))
}

fn placement_parser() -> impl TypedValueParser<Value = Placement> {
    PossibleValuesParser::new(Placement::ALL.iter().map(|placement| placement.name()))
        .map(|name| Placement::from_name(&name).expect("the parser admits placement names only"))
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
