//! Programs that people run, plain, over UNIX sockets, and under `megapipe run`: servers with the load
//! generators that people measure them with, and with the client libraries that programs use.
//!
//! Every transport is measured in every case, once per round, with servers of its own; within a
//! round the transports take turns, and each round has another order, so that a slow minute of the
//! machine, and what it remembers of the measurement before, fall on all of them alike. Programs that
//! are not installed are named and left out.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tempfile::TempDir;

use crate::Reason;
use crate::child::MONITOR_POLICY;
use crate::cpu::CpuSet;
use crate::network::{self, Namespace};
use crate::options::{check_pair, cpu_ends, seconds, this_program, whole};
use crate::pair::Placement;
use crate::product;
use crate::record::Record;
use crate::run::{self, RunError, Scenario, Unusable, in_turn};
use crate::summary::Summary;
use crate::views::APPS;

mod app;
mod calls;
mod client;
mod output;
mod programs;
mod server;
mod tokio;
mod waits;

use app::USUAL_SIZE;
pub use app::{App, Case, Operation, Pacing, Transport};
pub use calls::Calls;
pub use programs::missing;
pub use tokio::Tokio;
pub use waits::Waits;

use crate::process::Process;
use server::{Database, Part, Product, Server, Site};

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// What to measure: redis, memcached, nginx, haproxy, postgres and mariadb with their usual load generators;
    /// redis-py, psycopg2 and grpc with clients in Python; jdbc, PostgreSQL with one in Java; phpredis, Redis with
    /// one in PHP; gunicorn behind nginx; haproxy-node, HAProxy before Node.js; waits, threads of this program that
    /// wait by one call; tokio, a server and a client of this program on tokio, if it was built with the feature
    /// `peers`; and overhead, which is what the library costs programs that it does nothing for
    /// [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", hide_default_value = true)]
    #[arg(default_values_t = App::ALL.to_vec())]
    apps: Vec<App>,
    /// What the clients do: get (redis, memcached, redis-py, phpredis), keep-alive (nginx, haproxy, gunicorn, haproxy-node),
    /// select (postgres, mariadb, psycopg2, jdbc), large (values of 1 MiB), pipeline (of 100) and publish (redis-py), unary (grpc), by-read,
    /// by-poll, by-select, by-epoll, by-edge and by-pool (waits), multi-thread and current-thread (tokio), short (one request on each of 50
    /// connections at a time, or of --connections), idle (500 connections, on ten of which a request is under way)
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Operation::ALL.to_vec())]
    operations: Vec<Operation>,
    /// Concurrent connections, or threads of a client in Python or Java, or processes of one in PHP, up to 500, where
    /// an operation has no number of its own
    /// [default: 1,50,500; 1,8 for clients in Python, gunicorn and haproxy-node, 1,8,50 for mariadb, jdbc, phpredis, waits and tokio]
    #[arg(long, value_delimiter = ',', value_name = "COUNTS")]
    #[arg(value_parser = whole(1..=500_u32))]
    connections: Vec<u32>,
    /// Where server and client run: two-cores (a CPU each; the first operation of each server also with
    /// the library in one of both alone), one-core, either (of two CPUs, not pinned), oversubscribed (four busy
    /// processes per CPU beside them) [default: all, or one-core with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    placements: Vec<Placement>,
    /// What is measured beside plain TCP: megapipe; client-only and server-only, with the library in one of
    /// both; unix, the server's UNIX socket; channel, with --channels: memcached and nginx on channels
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Transport::ALL.to_vec())]
    transports: Vec<Transport>,
    /// Measure what has long connections also at half or a quarter of the requests per second that plain TCP
    /// bore in the first round; latency counts from when a request was due [half without a value]
    #[arg(long, value_delimiter = ',', value_name = "RATES", num_args = 0..=1, default_missing_value = "half")]
    #[arg(value_parser = Pacing::of_rate)]
    open_loop: Vec<Pacing>,
    /// Where libmegapipe.so.0 lies with what `make` of examples/memcached and examples/nginx has built,
    /// libmegapipe-memcached.so and ngx_megapipe_module.so
    #[arg(long, value_name = "FOLDER")]
    channels: Option<PathBuf>,
    /// Bytes of a message of waits, and those that memcached and nginx answer with; nginx has 64 in memory, and
    /// others in a file
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "64")]
    #[arg(value_parser = whole(1..=1_000_000_u32))]
    sizes: Vec<u32>,
    /// Put the servers behind a veth pair, with packets spread over all CPUs (RPS); memcached and nginx alone, as root
    #[arg(long)]
    veth: bool,
    /// The two CPUs, such as 0,1: the server takes the first, the client the last
    #[arg(long, value_name = "CPUS", default_value_t = cpu_ends())]
    cpus: CpuSet,
    /// Length of each measurement; wrk and pgbench take whole seconds
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    window: Duration,
}

const PLACEMENTS: &[Placement] =
    &[Placement::TwoCores, Placement::OneCore, Placement::Either, Placement::Oversubscribed];

impl Plan {
    /// All cases, in the order in which they are measured.
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &placement in &self.placements {
            for &app in &self.apps {
                let has = |operation: &&Operation| self.operations.contains(operation);
                for &operation in app.operations().iter().filter(has) {
                    let connections = match operation.connections() {
                        Some(own) if operation != Operation::Short || self.connections.is_empty() => {
                            vec![own]
                        }
                        Some(_) => self.connections.clone(),
                        None if self.connections.is_empty() => app.facts().connections.to_vec(),
                        None => self.connections.clone(),
                    };
                    let sizes = if app.has_sizes() { &self.sizes[..] } else { &[USUAL_SIZE] };
                    for (connections, &size) in connections
                        .into_iter()
                        .flat_map(|connections| sizes.iter().map(move |size| (connections, size)))
                    {
                        let case =
                            Case { app, operation, connections, placement, pacing: Pacing::Closed, size };
                        cases.push(case);
                        let paced = self.open_loop.iter().filter(|_| operation.is_worth_it());
                        cases.extend(paced.map(|&pacing| Case { pacing, ..case }));
                    }
                }
            }
        }
        cases
    }

    /// What is measured of a case.
    fn transports(&self, case: Case) -> Vec<Transport> {
        let is_asked = |one: &Transport| match one {
            Transport::Tcp => true,
            Transport::Channel => self.channels.is_some() && self.transports.contains(one),
            other => self.transports.contains(other),
        };
        case.transports().into_iter().filter(is_asked).collect()
    }

    /// What servers on channels are made of.
    fn channel_files(&self) -> Vec<(PathBuf, &'static str)> {
        let Some(folder) = &self.channels else { return Vec::new() };
        let names = self.apps.iter().flat_map(|app| app.channel_files());
        names.map(|name| (folder.join(name), *name)).collect()
    }

    fn has_overhead(&self) -> bool {
        self.apps.contains(&App::Overhead)
    }
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        check_pair(&self.cpus, true)?;
        self.placements = Placement::possible(&self.placements, PLACEMENTS, &self.cpus)?;
        if let Some((file, _)) = self.channel_files().into_iter().find(|(file, _)| !file.is_file()) {
            let file = file.display();
            return Err(Unusable(format!(
                "--channels: there is no {file}; make in examples/memcached or examples/nginx builds it, and \
                 libmegapipe.so.0 goes beside it"
            ))
            .into());
        }
        if self.veth {
            if !self.apps.iter().all(|app| app.has_channels()) {
                return Err(Unusable("--veth is for --apps memcached,nginx".to_owned()).into());
            }
            // Before there is a second thread, which could not follow.
            network::enter_own()?;
        }
        product::megapipe()?;
        product::library()?;
        let each = self.cases().into_iter().map(|case| self.transports(case).len()).sum::<usize>();
        match each + if self.has_overhead() { 2 } else { 0 } {
            0 => Err(Unusable(
                "nothing to measure: none of the --apps does any of the --operations".to_owned(),
            )
            .into()),
            each => Ok(each * rounds as usize),
        }
    }

    /// What the run started has ended afterwards, and what it wrote is removed.
    fn run(&self, run: &mut run::Run<'_>) -> Result<(), RunError> {
        let missing = self.apps.iter().map(|&app| (app, missing(app.programs()).join(", ")));
        let missing = missing.collect::<HashMap<_, _>>();
        let mut at_work = Run::start(self, run.stop).map_err(RunError::lacks("cannot start a monitor"))?;
        run.header(json!({
            "cpus": self.cpus.as_slice(),
            "seconds": self.window.as_secs_f64(),
            "network": if self.veth { "veth" } else { "loopback" },
            "versions": versions(self, run.stop),
        }))?;
        for round in 1..=run.rounds {
            for case in self.cases() {
                let missing = &missing[&case.app];
                for transport in in_turn(&self.transports(case), round) {
                    let mut place = json!({ "app": case.app });
                    if missing.is_empty() {
                        place = json!(case);
                        place["transport"] = json!(transport);
                    }
                    run.measure(round, format!("{case}, {transport}"), place, || match missing.is_empty() {
                        true => at_work.measure(&case, transport),
                        false => Err(format!("not installed: {missing}").into()),
                    })?;
                }
            }
            for turn in 0..if self.has_overhead() { 2 } else { 0 } {
                run.begin("overhead");
                let preloaded = (turn + round) % 2 == 0;
                let (folder, cpus) = (at_work.folder.path(), self.cpus.first());
                let product = preloaded.then_some(&at_work.product);
                let costs = calls::measure(&this_program(), folder, &cpus, product, run.stop)
                    .map_err(RunError::lacks("cannot measure the overhead"))?;
                for (cost, ns) in costs {
                    let fields = json!({ "cost": cost, "preloaded": preloaded, "round": round, "ns": ns });
                    run.record(Record::new("overhead", fields))?;
                }
                run.done();
            }
        }
        Ok(())
    }

    fn is_success(&self, records: &[Record]) -> bool {
        let plain = without_promotion(records);
        for case in &plain {
            eprintln!(
                "megapipe-bench: {case}: nothing was promoted, so this did not measure Megapipe; MEGAPIPE_PROMOTE, \
                 MEGAPIPE_ONLY and MEGAPIPE_NOT may forbid it, and `megapipe doctor` says what the system lacks"
            );
        }
        // What is not installed is no failure, all else that is absent is.
        let failed = records.iter().any(|one| one.kind() == "absent" && one.field("transport").is_some());
        records.iter().any(Record::is_measurement) && !failed && plain.is_empty()
    }
}

/// What all measurements share; dropping it ends and removes it.
struct Run<'plan> {
    plan: &'plan Plan,
    stop: &'plan AtomicBool,
    product: Product,
    servers: Option<Namespace>,
    databases: HashMap<&'static str, Database>,
    /// Requests per second of plain TCP in the first round, of each closed loop.
    plain: HashMap<Case, f64>,
    /// Measurements begun.
    number: u32,
    // The monitor before its folder.
    _monitor: Process,
    folder: TempDir,
}

impl<'plan> Run<'plan> {
    fn start(plan: &'plan Plan, stop: &'plan AtomicBool) -> Result<Self, Reason> {
        let mut folder = tempfile::Builder::new();
        // Others may read what is there, since not all programs run as ourselves.
        let folder =
            folder.prefix("megapipe-apps-").permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
        // Copies beside each other, since some programs run as another user, who may not read the originals.
        let copy = |file: &Path, name| -> Result<PathBuf, Reason> {
            let copy = folder.path().join(name);
            fs::copy(file, &copy)
                .and_then(|_| fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("cannot copy {}: {error}", file.display()))?;
            Ok(copy)
        };
        let megapipe = copy(&product::megapipe()?, "megapipe")?;
        for (file, name) in plan.channel_files() {
            copy(&file, name)?;
        }
        let channels = plan.channels.as_ref().map(|_| folder.path().to_owned());
        let library = copy(&product::library()?, "libmegapipe_preload.so")?;
        let (socket, policy) = (folder.path().join("monitor.sock"), folder.path().join("policy.toml"));
        fs::write(&policy, MONITOR_POLICY)?;
        for (name, text) in client::SCRIPTS {
            fs::write(folder.path().join(name), text)?;
        }
        let mut command = Command::new(&megapipe);
        command.args(["monitor", "--socket"]).arg(&socket).arg("--config").arg(&policy);
        server::undress(&mut command);
        command.env("MEGAPIPE_LOG", "error");
        let mut monitor = Process::start(command, folder.path(), &plan.cpus)?;
        monitor.wait_until(|| socket.exists(), stop)?;
        let product = Product { megapipe, library, monitor: socket, channels };
        Ok(Self {
            plan,
            stop,
            product,
            servers: plan.veth.then(Namespace::of_servers).transpose()?,
            databases: HashMap::new(),
            plain: HashMap::new(),
            number: 0,
            _monitor: monitor,
            folder,
        })
    }

    fn measure(&mut self, case: &Case, transport: Transport) -> Result<Record, Reason> {
        let plan = self.plan;
        let rate = match case.pacing.share() {
            None => None,
            Some(share) => {
                let plain = self.plain.get(&case.closed());
                Some(plain.ok_or("plain TCP gave no rate")? * share)
            }
        };
        let [server_cpus, client_cpus] = &case.placement.of(&plan.cpus);
        self.number += 1;
        let mut site = Site {
            folder: self.folder.path(),
            product: &self.product,
            servers: self.servers.as_ref(),
            number: self.number,
            database: None,
            transport,
            server_cpus,
            client_cpus,
            stop: self.stop,
        };
        if let Some(name) = case.app.facts().database {
            if !self.databases.contains_key(name) {
                self.databases.insert(name, Database::new(name, &site)?);
            }
            site.database = self.databases.get(name);
        }
        let time = plan.window * 20 + Duration::from_secs(120);
        let _crowd = case.placement.crowd(&plan.cpus, time)?;
        let server = Server::start(*case, &site)?;
        let measured = client::measure(case, rate, &server, &site, &this_program(), plan.window)?;
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
                return Err(format!("{name} ended without the library's summary: it was not loaded").into());
            }
        }
        if measured.load.requests_per_s == 0.0 || measured.load.requests == 0.0 {
            let client = case.client().name();
            return Err(format!("{client} had no answer in its time").into());
        }
        if (transport, case.pacing) == (Transport::Tcp, Pacing::Closed) {
            self.plain.entry(*case).or_insert(measured.load.requests_per_s);
        }
        let per_request = |time: Duration| time.as_nanos() as f64 / measured.load.requests;
        let fields = json!({
            "client": case.client().name(),
            "transport": transport,
            "rate": rate,
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
fn without_promotion(records: &[Record]) -> Vec<Case> {
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

fn versions(plan: &Plan, stop: &AtomicBool) -> BTreeMap<&'static str, String> {
    let names = plan.apps.iter().flat_map(|app| app.programs()).take_while(|_| !stop.load(Ordering::Relaxed));
    names.filter_map(|name| Some((*name, programs::version(name)?))).collect()
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
}
