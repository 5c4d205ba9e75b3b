//! `megapipe bench apps`: servers that people run, plain and with the preload library.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::bench::apps::record::Record;
use ::bench::apps::{
    self, App, LIBRARY, Operation, Plan, Progress, Request, Target, Task, run_load, time_calls,
    without_promotion,
};
use ::bench::cpu::CpuSet;
use ::bench::pair::Placement;
use ::bench::rpc::Outcome;
use ::bench::{plot, with_causes};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{
    INTERRUPTED, JsonLines, check_cpus, json_file, print, progress_bar, seconds, stop_on_signal, svg_file,
    whole,
};

#[derive(Args)]
pub(super) struct Apps {
    /// What to measure: redis, memcached, nginx, haproxy, postgres, and overhead, which is what the
    /// library costs programs that it does nothing for [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = subject_parser())]
    apps: Vec<Subject>,
    /// What the clients do: get and set (redis, memcached), keep-alive and file (nginx; haproxy has
    /// the first), select (postgres), short (one request on each of 50 connections at a time), idle
    /// (500 connections, on ten of which a request is under way) [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = operation_parser())]
    operations: Vec<Operation>,
    /// Concurrent connections, up to 500
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "1,50,500")]
    #[arg(value_parser = whole(1..=500))]
    connections: Vec<u32>,
    /// Where server and client run: two-cores (a CPU each), one-core, oversubscribed (four busy
    /// processes per CPU beside them) [default: all, or one-core with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = placement_parser())]
    placements: Vec<Placement>,
    /// The two CPUs, such as 0,1: the server takes the first, the client the last [default: the first
    /// and the last CPU]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CpuSet>,
    /// Length of each measurement; wrk and pgbench take whole seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Measurements of everything that is compared, in turn
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = whole(1..=1_000_000))]
    rounds: u32,
    /// Write one JSON object per line: a header, then a record per server, operation, connections,
    /// placement, transport and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

/// The load generator for servers that bring none.
#[derive(Args)]
pub(super) struct Load {
    #[arg(long, value_parser = request)]
    request: Request,
    #[arg(long, required_unless_present = "path")]
    port: Option<u16>,
    #[arg(long)]
    path: Option<PathBuf>,
    #[arg(long)]
    connections: u32,
    #[arg(long)]
    active: u32,
    #[arg(long)]
    warm_up_ns: u64,
    #[arg(long)]
    window_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Subject {
    App(App),
    Overhead,
}

/// A flag that is well-formed, yet says nothing beside the others or on this machine.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Cpu(#[from] super::Unusable),
    #[error("--placements: {} takes two CPUs, and there is CPU {given} alone; give two --cpus, or one-core", placement.name())]
    TooFewCpus { placement: Placement, given: CpuSet },
    #[error("nothing to measure: none of the --apps does any of the --operations")]
    Nothing,
    #[error(
        "the preload library {LIBRARY} is neither beside this program nor in ../lib/megapipe; build it (cargo build \
         --release -p megapipe-preload), or name it in MEGAPIPE_PRELOAD"
    )]
    NoLibrary,
}

impl Apps {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn Error>> {
        let plan = match self.plan(&CpuSet::allowed()?) {
            Ok(plan) => plan,
            Err(unusable) => {
                eprintln!("megapipe bench: {unusable}");
                return Ok(ExitCode::from(2));
            }
        };
        if let Some(file) = &self.plot {
            plot::check(file)?;
        }
        let mut json = self.json.map(JsonLines::create).transpose()?;
        let stop = stop_on_signal()?;
        let bar = progress_bar(plan.measurements());
        let mut records = Vec::new();
        let ended = apps::run(&plan, &stop, &mut |progress| {
            match progress {
                Progress::Measuring(case, transport) => {
                    bar.set_message(format!("{case}, {}", transport.name()))
                }
                Progress::Overhead => bar.set_message("overhead"),
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
        let printed = print(&apps::table::render(&records));
        let outcome = ended?;
        printed?;
        let of_app = records.iter().filter(|record| matches!(record, Record::App(_))).count();
        let of_library = records.iter().filter(|record| matches!(record, Record::Overhead(_))).count();
        if let Some(file) = &self.plot
            && of_app > 0
        {
            apps::plot::draw(&records, file)?;
        }
        if outcome == Outcome::Stopped {
            eprintln!("stopped: {of_app} of {} measurements kept", plan.measurements());
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let plain = without_promotion(&records);
        for case in &plain {
            eprintln!(
                "megapipe bench: {case}: nothing was promoted, so this did not measure Megapipe; MEGAPIPE_PROMOTE, \
                 MEGAPIPE_ONLY and MEGAPIPE_NOT may forbid it, and `megapipe doctor` says what the system lacks"
            );
        }
        // The table has said why something is absent: what is not installed is no failure, all else is.
        let failed = records.iter().any(|record| matches!(record, Record::Absent(one) if one.case.is_some()));
        match of_app + of_library == 0 || failed || !plain.is_empty() {
            true => Ok(ExitCode::FAILURE),
            false => Ok(ExitCode::SUCCESS),
        }
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        let cpus = match &self.cpus {
            Some(given) if given.len() > 2 => {
                return Err(super::Unusable::TooManyCpus { given: given.clone() }.into());
            }
            Some(given) => given.clone(),
            None => allowed.ends(),
        };
        check_cpus("--cpus", &cpus, allowed)?;
        let placements = match self.placements.as_slice() {
            [] => PLACEMENTS.iter().copied().filter(|placement| placement.cpus() <= cpus.len()).collect(),
            named => named.to_vec(),
        };
        if let Some(&placement) = placements.iter().find(|placement| placement.cpus() > cpus.len()) {
            return Err(Unusable::TooFewCpus { placement, given: cpus });
        }
        let subjects = if self.apps.is_empty() { subjects() } else { self.apps.clone() };
        let apps = subjects.iter().filter_map(|subject| match subject {
            Subject::App(app) => Some(*app),
            Subject::Overhead => None,
        });
        let operations = match self.operations.as_slice() {
            [] => Operation::ALL.to_vec(),
            named => named.to_vec(),
        };
        let program = std::env::current_exe().unwrap_or_default();
        let plan = Plan {
            program: PathBuf::from("/proc/self/exe"),
            library: apps::library(&program).ok_or(Unusable::NoLibrary)?,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            apps: apps.collect(),
            overhead: subjects.contains(&Subject::Overhead),
            operations,
            connections: self.connections.clone(),
            placements,
            cpus,
            window: self.seconds,
            rounds: self.rounds,
        };
        match plan.measurements() {
            0 => Err(Unusable::Nothing),
            _ => Ok(plan),
        }
    }
}

impl Load {
    pub(super) fn run(self) -> ExitCode {
        let target = match (self.path, self.port) {
            (Some(path), _) => Target::Path(path),
            (None, port) => Target::Port(port.unwrap_or_default()),
        };
        let task = Task {
            target,
            request: self.request,
            connections: self.connections,
            active: self.active,
            warm_up: Duration::from_nanos(self.warm_up_ns),
            window: Duration::from_nanos(self.window_ns),
        };
        told(run_load(&task))
    }
}

/// Times calls that the library has nothing to do with.
pub(super) fn calls() -> ExitCode {
    told(time_calls())
}

/// Prints what the controller waits for.
fn told<Report: serde::Serialize, Failed: Error>(result: Result<Report, Failed>) -> ExitCode {
    match result.map(|report| serde_json::to_string(&report)) {
        Ok(Ok(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}", with_causes(&error)); // the controller says whose words these are
            ExitCode::FAILURE
        }
    }
}

fn subjects() -> Vec<Subject> {
    App::ALL.iter().copied().map(Subject::App).chain([Subject::Overhead]).collect()
}

fn subject_parser() -> impl TypedValueParser<Value = Subject> {
    let names = App::ALL.iter().map(|app| app.name()).chain(["overhead"]);
    PossibleValuesParser::new(names).map(|name| App::from_name(&name).map_or(Subject::Overhead, Subject::App))
}

fn operation_parser() -> impl TypedValueParser<Value = Operation> {
    PossibleValuesParser::new(Operation::ALL.iter().map(|operation| operation.name()))
        .map(|name| Operation::from_name(&name).expect("the parser admits operation names only"))
}

fn placement_parser() -> impl TypedValueParser<Value = Placement> {
    PossibleValuesParser::new(PLACEMENTS.iter().map(|placement| placement.name()))
        .map(|name| Placement::from_name(&name).expect("the parser admits placement names only"))
}

fn request(name: &str) -> Result<Request, &'static str> {
    Request::from_name(name).ok_or("no such request")
}

const PLACEMENTS: &[Placement] = &[Placement::TwoCores, Placement::OneCore, Placement::Oversubscribed];
