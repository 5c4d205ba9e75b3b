//! Programs that people run, plain, over UNIX sockets, and under `megapipe run`: servers with the load
//! generators that people measure them with, and with the client libraries that programs use.
//!
//! Every transport is measured in every case, once per round, with servers of its own; within a
//! round the transports take turns, and each round has another order, so that a slow minute of the
//! machine, and what it remembers of the measurement before, fall on all of them alike. Programs that
//! are not installed are named and left out.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::child::{Failure, MONITOR_POLICY};
use crate::cpu::CpuSet;
use crate::pair::{Crowd, Placement};
use crate::progress::{Listener, Outcome, Progress};
use crate::record::Record;
use crate::summary::Summary;
use crate::views::APPS;

mod app;
mod calls;
mod client;
mod load;
mod output;
mod process;
mod programs;
mod server;

pub use app::{App, Case, Operation, Pacing, Transport};
pub use calls::{CallTimes, time_calls};
pub use load::run as run_load;
pub use output::Report;
pub use programs::missing;

use process::{Ending, Process};
use server::{Database, Part, Product, Server, Site};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again as a client.
    pub program: PathBuf,
    /// `megapipe`, which runs the programs and is the monitor.
    pub megapipe: PathBuf,
    /// The preload library.
    pub library: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// The servers.
    pub apps: Vec<App>,
    /// Whether to measure what the library costs programs that it does nothing for.
    pub overhead: bool,
    /// What clients do; each server takes part in those that it has.
    pub operations: Vec<Operation>,
    /// Concurrent connections, where an operation has no number of its own; each server's usual ones if empty.
    pub connections: Vec<u32>,
    /// What is measured beside plain TCP, of what a case has.
    pub transports: Vec<Transport>,
    /// Whether requests are also sent at half of the rate that plain TCP bore.
    pub open_loop: bool,
    /// Where the programs run.
    pub placements: Vec<Placement>,
    /// The CPUs of both: two, or one if both are to share it.
    pub cpus: CpuSet,
    /// Length of one measurement, which clients that know no fractions round to seconds.
    pub window: Duration,
    /// Measurements of each transport in each case.
    pub rounds: u32,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A folder or process of our own cannot be made.
    #[error("cannot prepare the measurements")]
    Prepare(#[source] io::Error),
    /// The monitor does not run.
    #[error("cannot start a monitor: {0}")]
    Monitor(String),
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
}

impl Plan {
    /// All cases, in the order in which they are measured.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &placement in &self.placements {
            for &app in &self.apps {
                let has = |operation: &&Operation| self.operations.contains(operation);
                for &operation in app.operations().iter().filter(has) {
                    let connections = match operation.connections() {
                        Some(own) => vec![own],
                        None if self.connections.is_empty() => app.connections().to_vec(),
                        None => self.connections.clone(),
                    };
                    for connections in connections {
                        let case = Case { app, operation, connections, placement, pacing: Pacing::Closed };
                        cases.push(case);
                        if self.open_loop && operation.is_worth_it() {
                            cases.push(Case { pacing: Pacing::Open, ..case });
                        }
                    }
                }
            }
        }
        cases
    }

    /// What is measured of a case.
    fn transports(&self, case: Case) -> Vec<Transport> {
        let is_asked = |one: &Transport| *one == Transport::Tcp || self.transports.contains(one);
        case.transports().into_iter().filter(is_asked).collect()
    }

    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        let each = self.cases().into_iter().map(|case| self.transports(case).len()).sum::<usize>();
        (each + if self.overhead { 2 } else { 0 }) * self.rounds as usize
    }
}

/// Runs the plan until it is complete or `stop` is set. What it started has ended then, and what it
/// wrote is removed.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_>) -> Result<Outcome, RunError> {
    let mut tell = |progress: Progress<'_>| report(progress).map_err(RunError::Report);
    let mut absent = Vec::new();
    for &app in &plan.apps {
        let missing = missing(app.programs());
        if !missing.is_empty() {
            absent.push((app, format!("not installed: {}", missing.join(", "))));
        }
    }
    let mut run = match Run::start(plan, stop) {
        Ok(run) => run,
        Err(Failure::Stopped) => return Ok(Outcome::Stopped),
        Err(Failure::Because(reason)) => return Err(RunError::Monitor(reason)),
    };
    tell(Progress::Record(&header(plan, stop)))?;
    for (app, reason) in &absent {
        tell(Progress::Record(&Record::absent(json!({ "app": app }), reason)))?;
    }
    let mut lost = Vec::new();
    for round in 1..=plan.rounds {
        for case in plan.cases() {
            let transports = plan.transports(case);
            let installed = absent.iter().all(|(app, _)| *app != case.app);
            for transport in order(transports.len(), round as usize).map(|place| transports[place]) {
                if installed && !lost.contains(&(case, transport)) {
                    tell(Progress::Measuring(format!("{case}, {}", transport.name())))?;
                    match run.measure(&case, transport, round) {
                        Ok(measurement) => tell(Progress::Record(&measurement))?,
                        Err(Failure::Stopped) => return Ok(Outcome::Stopped),
                        Err(Failure::Because(reason)) => {
                            lost.push((case, transport));
                            let absent =
                                Record::absent(case, &reason).with(json!({ "transport": transport }));
                            tell(Progress::Record(&absent))?;
                        }
                    }
                }
                tell(Progress::Done)?;
            }
        }
        for turn in 0..if plan.overhead { 2 } else { 0 } {
            tell(Progress::Measuring("overhead".to_owned()))?;
            let preloaded = (turn + round) % 2 == 0;
            let product = preloaded.then_some(&run.product);
            match calls::measure(&plan.program, run.folder.path(), &plan.cpus.first(), product, stop) {
                Ok(costs) => {
                    for (cost, ns) in costs {
                        let fields =
                            json!({ "cost": cost, "preloaded": preloaded, "round": round, "ns": ns });
                        tell(Progress::Record(&Record::new("overhead", fields)))?;
                    }
                }
                Err(Failure::Stopped) => return Ok(Outcome::Stopped),
                Err(Failure::Because(reason)) => {
                    return Err(RunError::Prepare(io::Error::other(reason)));
                }
            }
            tell(Progress::Done)?;
        }
    }
    Ok(Outcome::Complete)
}

/// The places of so many transports in the order of a round, which is counted from 1. Each round begins with another one,
/// and has another one come after each: a machine that lends its CPUs out is slower for seconds after a transport that
/// kept both busy.
fn order(count: usize, round: usize) -> impl Iterator<Item = usize> {
    let steps: Vec<usize> = (1..=count).filter(|step| is_coprime(*step, count)).collect();
    let step = steps[(round - 1) % steps.len()];
    (0..count).map(move |turn| (round - 1 + turn * step) % count)
}

fn is_coprime(a: usize, b: usize) -> bool {
    if b == 0 { a == 1 } else { is_coprime(b, a % b) }
}

/// What all measurements share; dropping it ends and removes it.
struct Run<'plan> {
    plan: &'plan Plan,
    stop: &'plan AtomicBool,
    product: Product,
    database: Option<Database>,
    /// Requests per second of plain TCP in the first round, of each closed loop.
    plain: HashMap<Case, f64>,
    /// Measurements begun.
    number: u32,
    // The monitor before its folder.
    _monitor: Process,
    folder: TempDir,
}

impl<'plan> Run<'plan> {
    fn start(plan: &'plan Plan, stop: &'plan AtomicBool) -> Result<Self, Failure> {
        let mut folder = tempfile::Builder::new();
        // Others may read what is there, since not all programs run as ourselves.
        let folder =
            folder.prefix("megapipe-apps-").permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
        // Copies beside each other, since some programs run as another user, who may not read the originals.
        let copy = |file: &Path, name| -> Result<PathBuf, Failure> {
            let copy = folder.path().join(name);
            fs::copy(file, &copy)
                .and_then(|_| fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("cannot copy {}: {error}", file.display()))?;
            Ok(copy)
        };
        let megapipe = copy(&plan.megapipe, "megapipe")?;
        let library = copy(&plan.library, "libmegapipe_preload.so")?;
        let (socket, policy) = (folder.path().join("monitor.sock"), folder.path().join("policy.toml"));
        fs::write(&policy, MONITOR_POLICY)?;
        fs::write(folder.path().join(client::SCRIPT), include_str!("apps/scripts/client.py"))?;
        let mut command = Command::new(&megapipe);
        command.args(["monitor", "--socket"]).arg(&socket).arg("--config").arg(&policy);
        server::undress(&mut command);
        command.env("MEGAPIPE_LOG", "error");
        let mut monitor = Process::start(command, folder.path(), &plan.cpus, Ending::Terminate)?;
        monitor.wait_until(|| socket.exists(), stop)?;
        let product = Product { megapipe, library, monitor: socket };
        Ok(Self {
            plan,
            stop,
            product,
            database: None,
            plain: HashMap::new(),
            number: 0,
            _monitor: monitor,
            folder,
        })
    }

    fn measure(&mut self, case: &Case, transport: Transport, round: u32) -> Result<Record, Failure> {
        let plan = self.plan;
        let rate = match case.pacing {
            Pacing::Closed => None,
            Pacing::Open => {
                let plain = self.plain.get(&case.closed());
                Some(plain.ok_or_else(|| Failure::Because("plain TCP gave no rate".to_owned()))? / 2.0)
            }
        };
        let [server_cpus, client_cpus] = &case.placement.of(&plan.cpus);
        self.number += 1;
        let mut site = Site {
            folder: self.folder.path(),
            product: &self.product,
            number: self.number,
            database: None,
            transport,
            server_cpus,
            client_cpus,
            stop: self.stop,
        };
        if case.app.has_database() && self.database.is_none() {
            self.database = Some(Database::new(&site)?);
        }
        site.database = self.database.as_ref().filter(|_| case.app.has_database());
        let _crowd = crowd(plan, case.placement)?;
        let server = Server::start(case.app, case.operation, &site)?;
        let measured = client::measure(case, rate, &server, &site, &plan.program, plan.window)?;
        let programs = server.programs();
        drop(server);
        let promoted = |part, programs| match transport.has_library(part) {
            true => promoted(&site.log(part), programs),
            false => None,
        };
        let (promoted, server_promoted) = (promoted(Part::Client, 1), promoted(Part::Server, programs));
        for (part, name, summary) in
            [(Part::Client, case.client().name(), promoted), (Part::Server, case.app.name(), server_promoted)]
        {
            if transport.has_library(part) && summary.is_none() {
                let library = plan.library.display();
                return Err(Failure::Because(format!(
                    "{name} ended without the library's summary: {library} was not loaded"
                )));
            }
        }
        if measured.load.requests_per_s == 0.0 || measured.load.requests == 0.0 {
            let client = case.client().name();
            return Err(Failure::Because(format!("{client} had no answer in its time")));
        }
        if (transport, case.pacing) == (Transport::Tcp, Pacing::Closed) {
            self.plain.entry(*case).or_insert(measured.load.requests_per_s);
        }
        let per_request = |time: Duration| time.as_nanos() as f64 / measured.load.requests;
        let fields = json!({
            "client": case.client().name(),
            "transport": transport,
            "rate": rate,
            "round": round,
            "requests_per_s": measured.load.requests_per_s,
            "p50_us": measured.load.p50_us,
            "p99_us": measured.load.p99_us,
            "p999_us": measured.load.p999_us,
            "server_cpu_ns_per_request": per_request(measured.server_cpu),
            "client_cpu_ns_per_request": per_request(measured.client_cpu),
            "promoted": promoted,
            "server_promoted": server_promoted,
        });
        Ok(Record::new("app", case).with(fields))
    }
}

/// The cases in which Megapipe promoted no connection in any round, though they are worth it: what
/// was measured there is not Megapipe.
pub fn without_promotion(records: &[Record]) -> Vec<Case> {
    let rows = Summary::of(&APPS, records).rows.into_iter();
    let ours = rows.filter(|row| row.subject == Transport::Megapipe.name());
    let none = ours.filter(|row| row.rounds.iter().all(|one| one.number("promoted").unwrap_or(0.0) == 0.0));
    none.filter_map(|row| row.rounds[0].read()).filter(|case: &Case| case.is_worth_it()).collect()
}

/// The connections that the summaries of some programs say were promoted, once all are there: at
/// least one process of each has connections and prints one. `None` if none comes in time.
fn promoted(log: &Path, programs: usize) -> Option<u64> {
    let deadline = Instant::now() + SUMMARY;
    loop {
        let counts = output::promoted(&fs::read_to_string(log).unwrap_or_default());
        if counts.len() >= programs || Instant::now() > deadline {
            return (!counts.is_empty()).then(|| counts.iter().sum());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// How long after a program's end its summary may come.
const SUMMARY: Duration = Duration::from_secs(3);

/// Those who want the CPUs, too, while a measurement is made.
fn crowd(plan: &Plan, placement: Placement) -> Result<Option<Crowd>, Failure> {
    if placement != Placement::Oversubscribed {
        return Ok(None);
    }
    let time = plan.window * 20 + Duration::from_secs(120);
    Ok(Some(Crowd::start(&plan.program, &plan.cpus, time)?))
}

fn header(plan: &Plan, stop: &AtomicBool) -> Record {
    let mut versions = BTreeMap::new();
    for name in plan.apps.iter().flat_map(|app| app.programs()) {
        if !stop.load(Ordering::Relaxed)
            && let Some(words) = programs::version(name)
        {
            versions.insert((*name).to_owned(), words);
        }
    }
    let fields = json!({
        "cpus": plan.cpus.as_slice(),
        "seconds": plan.window.as_secs_f64(),
        "rounds": plan.rounds,
        "versions": versions,
    });
    Record::header(&plan.command, fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_in_which_nothing_was_promoted_is_found() {
        let record = |operation: &str, transport: &str, round: u32, promoted: Option<u64>| {
            let place = json!({ "app": "redis", "connections": 1, "placement": "two-cores" });
            let rest = json!({ "operation": operation, "transport": transport, "round": round, "promoted": promoted });
            Record::new("app", place).with(rest)
        };
        let records = [
            record("get", "megapipe", 1, Some(0)),
            record("get", "megapipe", 2, Some(0)),
            record("set", "megapipe", 1, Some(0)),
            record("set", "megapipe", 2, Some(1)),
            record("short", "megapipe", 1, Some(0)),
            record("get", "tcp", 1, None),
        ];
        let cases = without_promotion(&records);
        assert_eq!(cases.iter().map(|case| case.operation).collect::<Vec<_>>(), [Operation::Get]);
    }

    #[test]
    fn each_transport_comes_after_each_other_one() {
        let rounds: Vec<Vec<usize>> = (1..=4).map(|round| order(5, round).collect()).collect();
        let mut followers: Vec<_> = rounds.iter().flat_map(|round| round.windows(2)).collect();
        followers.sort();
        followers.dedup();
        assert_eq!(followers.len(), 16, "{rounds:?}");
        assert!((0..4).all(|round| rounds[round][0] == round), "{rounds:?}");
        for count in 1..=6 {
            let mut all: Vec<_> = order(count, 7).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
