//! `megapipe-bench apps`: servers that people run, plain and with the preload library.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use bench::apps::{self, App, Operation, Plan, Transport, without_promotion};
use bench::cpu::CpuSet;
use bench::pair::Placement;
use bench::record::Record;
use clap::Args;

use super::flags::{
    PROGRAM, Unusable, command_line, distinct, one_of, or_all, placements, seconds, svg_file, up_to_two_cpus,
    whole,
};
use super::report::Report;
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
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
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
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
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
    #[command(flatten)]
    report: Report,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Subject {
    App(App),
    Overhead,
}

impl Apps {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan()?;
        let records = self.report.of(plan.measurements(), self.plot.as_deref(), |stop, listener| {
            apps::run(&plan, stop, listener)
        })?;
        let plain = without_promotion(&records);
        for case in &plain {
            eprintln!(
                "megapipe-bench: {case}: nothing was promoted, so this did not measure Megapipe; MEGAPIPE_PROMOTE, \
                 MEGAPIPE_ONLY and MEGAPIPE_NOT may forbid it, and `megapipe doctor` says what the system lacks"
            );
        }
        // What is not installed is no failure, all else that is absent is.
        let failed = records.iter().any(|one| one.kind() == "absent" && one.field("transport").is_some());
        Ok(records.iter().any(Record::is_measurement) && !failed && plain.is_empty())
    }

    fn plan(&self) -> Result<Plan, Box<dyn Error>> {
        let cpus = up_to_two_cpus(self.cpus.as_ref(), "both processes")?;
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
            rounds: self.report.rounds,
        };
        match plan.measurements() {
            0 => Err(Unusable(
                "nothing to measure: none of the --apps does any of the --operations".to_owned(),
            )
            .into()),
            _ => Ok(plan),
        }
    }
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

const PLACEMENTS: &[Placement] = &[Placement::TwoCores, Placement::OneCore, Placement::Oversubscribed];
