//! `megapipe-bench apps`: servers that people run, plain and with the preload library.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::apps::record::Record;
use bench::apps::{
    self, App, Operation, Plan, Target, Task, Transport, plot, run_load, table, time_calls, without_promotion,
};
use bench::cpu::CpuSet;
use bench::load::Request;
use bench::pair::Placement;
use clap::Args;
use serde::Serialize;

use super::flags::{
    PROGRAM, Unusable, command_line, distinct, json_file, one_of, or_all, placements, seconds, svg_file,
    up_to_two_cpus, whole,
};
use super::part_ended;
use super::report::{self, Report, View};
use crate::product;

#[derive(Args)]
pub(super) struct Apps {
    /// What to measure: redis, memcached, nginx, haproxy and postgres with their usual load generators;
    /// redis-py, psycopg2 and grpc with clients in Python; gunicorn behind nginx; haproxy-node, HAProxy
    /// before Node.js; and overhead, which is what the library costs programs that it does nothing for
    /// [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(&subjects(), Subject::name))]
    apps: Vec<Subject>,
    /// What the clients do: get and set (redis, memcached; redis-py has the first), keep-alive and file
    /// (nginx; haproxy, gunicorn and haproxy-node have the first), select (postgres, psycopg2), large
    /// (values of 1 MiB), pipeline (of 100) and publish (redis-py), unary (grpc), short (one request on each of 50 connections at a time), idle
    /// (500 connections, on ten of which a request is under way) [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Operation::ALL, Operation::name))]
    operations: Vec<Operation>,
    /// Concurrent connections, or threads of a client in Python, up to 500 [default: 1,50,500; 1,8 for clients in Python,
    /// gunicorn and haproxy-node]
    #[arg(long, value_delimiter = ',', value_name = "COUNTS")]
    #[arg(value_parser = whole(1..=500))]
    connections: Vec<u32>,
    /// Where server and client run: two-cores (a CPU each; the first operation of each server also with
    /// the library in one of both alone), one-core, oversubscribed (four busy processes per CPU beside
    /// them) [default: all, or one-core with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(PLACEMENTS, Placement::name))]
    placements: Vec<Placement>,
    /// What is measured beside plain TCP: megapipe; client-only and server-only, with the library in one of
    /// both; unix, the server's UNIX socket [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Transport::ALL, Transport::name))]
    transports: Vec<Transport>,
    /// Measure what has long connections also at half of the requests per second that plain TCP bore in the
    /// first round; latency counts from when a request was due
    #[arg(long)]
    open_loop: bool,
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
    /// Measure nothing: show the records of an earlier run, which --json wrote, of --apps and --operations
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    from: Option<PathBuf>,
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
    #[arg(long)]
    rate: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Subject {
    App(App),
    Overhead,
}

impl Apps {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        if let Some(file) = &self.from {
            report::show(file, self.plot.as_deref(), &VIEW, |record| self.wants(record))?;
            return Ok(true);
        }
        let plan = self.plan(&CpuSet::allowed()?)?;
        let mut report = Report::begin(plan.measurements(), self.json, self.plot)?;
        let ended = apps::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        let plain = without_promotion(&records);
        for case in &plain {
            eprintln!(
                "megapipe-bench: {case}: nothing was promoted, so this did not measure Megapipe; MEGAPIPE_PROMOTE, \
                 MEGAPIPE_ONLY and MEGAPIPE_NOT may forbid it, and `megapipe doctor` says what the system lacks"
            );
        }
        let measured = |record: &Record| matches!(record, Record::App(_) | Record::Overhead(_));
        // What is not installed is no failure, all else that is absent is.
        let failed = records.iter().any(|record| matches!(record, Record::Absent(one) if one.case.is_some()));
        Ok(records.iter().any(measured) && !failed && plain.is_empty())
    }

    /// Whether a kept record is of what --apps and --operations name.
    fn wants(&self, record: &Record) -> bool {
        let Record::App(record) = record else { return true };
        let app = self.apps.is_empty() || self.apps.contains(&Subject::App(record.case().app));
        app && (self.operations.is_empty() || self.operations.contains(&record.case().operation))
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        let cpus = up_to_two_cpus(self.cpus.as_ref(), allowed, "both processes")?;
        let placements = placements(&self.placements, PLACEMENTS, &cpus)?;
        let subjects = or_all(&self.apps, &subjects());
        let apps = subjects.iter().filter_map(|subject| match subject {
            Subject::App(app) => Some(*app),
            Subject::Overhead => None,
        });
        let plan = Plan {
            program: std::env::current_exe().unwrap_or_else(|_| PROGRAM.into()),
            megapipe: product::megapipe()?,
            library: product::library()?,
            command: command_line(),
            apps: apps.collect(),
            overhead: subjects.contains(&Subject::Overhead),
            operations: or_all(&self.operations, Operation::ALL),
            connections: distinct(&self.connections),
            transports: or_all(&self.transports, Transport::ALL),
            open_loop: self.open_loop,
            placements,
            cpus,
            window: self.seconds,
            rounds: self.rounds,
        };
        match plan.measurements() {
            0 => Err(Unusable::NoOperation),
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
            rate: self.rate,
        };
        told(run_load(&task))
    }
}

/// Times calls that the library has nothing to do with.
pub(super) fn calls() -> ExitCode {
    told(time_calls())
}

/// Prints what the controller waits for.
pub(super) fn told<Report: Serialize, Failed: Error + 'static>(result: Result<Report, Failed>) -> ExitCode {
    let print = |report| {
        println!("{}", serde_json::to_string(&report)?);
        Ok(())
    };
    part_ended(result.map_err(Box::<dyn Error>::from).and_then(print))
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::App(app) => app.name(),
            Subject::Overhead => "overhead",
        }
    }
}

fn subjects() -> Vec<Subject> {
    App::ALL.iter().copied().map(Subject::App).chain([Subject::Overhead]).collect()
}

fn request(name: &str) -> Result<Request, &'static str> {
    Request::from_name(name).ok_or("no such request")
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: Some(plot::draw),
    is_measurement: |record| matches!(record, Record::App(_)),
};

const PLACEMENTS: &[Placement] = &[Placement::TwoCores, Placement::OneCore, Placement::Oversubscribed];
