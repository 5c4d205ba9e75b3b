//! Listen queues of unmodified servers: one that all workers share, one for each of them by the server's own switch, and
//! `megapipe run --local-listen`, which has both. Beside them servers on channels: one listener, and partitioned ones.
//!
//! Client and server are in two network namespaces that a veth pair joins, with packets spread over all CPUs (RPS). Each
//! measurement starts its server anew; sides alternate, and the shared queue is measured twice, so that its own spread
//! stands beside the others' ratios.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::Reason;
use crate::cpu::CpuSet;
use crate::load::{self, Connections, Options, Report, Request, Target};
use crate::names::names;
use crate::network::{self, Namespace};
use crate::options::{seconds, this_program};
use crate::part::Part;
use crate::process::Process;
use crate::product;
use crate::record::Record;
use crate::region;
use crate::run::{Run, RunError, Scenario, in_turn};

pub mod channels;
mod disturbance;
mod programs;
pub mod server;

pub use programs::Program;

use programs::Server;
use server::Counts;

names! {
    /// What happens to a server.
    Case {
        /// As many short connections as it can serve.
        Short = "short",
        /// Workers on a CPU each, at a rate: where connections are accepted, and by whom.
        Locality = "locality",
        /// 0.5 % of the requests block their worker for 20 ms.
        Blocked = "blocked",
        /// A worker is stopped for a second.
        Stopped = "stopped",
        /// A worker is stopped for half a second, and then killed; one of a channel's threads hangs for as long, and ends.
        Killed = "killed",
    }
}

names! {
    /// How a server shares its listener.
    Variant {
        /// One queue that all workers share.
        Plain = "plain",
        /// The same once more.
        PlainAgain = "plain-again",
        /// A queue for each worker, by SO_REUSEPORT; of channels, by the CPU of the SYN alone (classic BPF).
        Reuseport = "reuseport",
        /// `megapipe run --local-listen`; of channels, partitioned listeners.
        Local = "local",
    }
}

impl Case {
    fn programs(self) -> &'static [Program] {
        match self {
            Case::Short => &[Program::Nginx, Program::Haproxy],
            Case::Locality | Case::Blocked => &[Program::Prefork],
            Case::Stopped | Case::Killed => &[Program::Nginx, Program::ChannelUring, Program::ChannelEpoll],
        }
    }

    /// The load: connections at a time, and how many are begun in a second whether or not earlier ones were answered;
    /// else each follows an answer.
    fn connections(self) -> (usize, Option<f64>) {
        match self {
            Case::Short => (64, None),
            _ => (20_000, Some(800.0)),
        }
    }
}

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Cases to measure
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Case::ALL.to_vec())]
    cases: Vec<Case>,
    /// Listeners to compare
    #[arg(long = "listeners", value_delimiter = ',', value_name = "NAMES", default_values_t = Variant::ALL.to_vec())]
    variants: Vec<Variant>,
    /// Length of each load
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    length: Duration,
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        product::megapipe()?;
        product::library()?;
        // Before there is a second thread, which could not follow.
        network::enter_own()?;
        let servers: usize = self.cases.iter().map(|case| case.programs().len()).sum();
        Ok(servers * self.variants.len() * rounds as usize)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        run.header(json!({ "scenario": "listen", "seconds": self.length.as_secs_f64() }))?;
        let servers = Namespace::of_servers().map_err(RunError::lacks(
            "cannot make network namespaces; this needs root, ip(8) and unshare(1)",
        ))?;
        let folder = tempfile::tempdir().map_err(RunError::lacks("cannot make a temporary folder"))?;
        let mut port = FIRST_PORT;
        for round in 1..=run.rounds {
            let all = self.cases.iter().flat_map(|case| case.programs().iter().map(|one| (*case, *one)));
            for (case, program) in all {
                for variant in in_turn(&self.variants, round) {
                    port += 1;
                    let what = format!("{case}, {program}, {variant}");
                    let place = json!({ "case": case, "program": program, "variant": variant });
                    let stop = run.stop;
                    run.measure(round, what, place, || {
                        measure(self, &servers, (case, program, variant), port, folder.path(), stop)
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn measure(
    plan: &Plan,
    servers: &Namespace,
    (case, program, variant): (Case, Program, Variant),
    port: u16,
    folder: &Path,
    stop: &AtomicBool,
) -> Result<Record, Reason> {
    let address = SocketAddr::new(network::SERVER.into(), port);
    let counts = region::create(server::COUNTS_BYTES)?;
    let server = Server::start(servers, (program, variant), address, counts.as_raw_fd(), folder, stop)?;
    let start = |request, share| {
        let load = load(plan, case, address, request, share).command(&this_program());
        Process::start(load, folder, &CpuSet::allowed()?)
    };
    let before = server.cpu_time()?;
    let mut client = start(Request::HttpOnce, 1.0)?;
    let _blocking = (case == Case::Blocked).then(|| start(Request::HttpBlocking, BLOCKING)).transpose()?;
    match case {
        Case::Stopped | Case::Killed => {
            // Before the end of the load there is time to see what follows.
            thread::sleep(plan.length.mul_f64(0.25));
            match case {
                Case::Stopped => server.stop_a_worker(Duration::from_secs(1))?,
                _ => server.kill_a_worker()?,
            }
        }
        Case::Short | Case::Locality | Case::Blocked => {}
    }
    let load: Report = serde_json::from_str(&client.finish(plan.length + PATIENCE * 4, stop)?)?;
    let cpu = server.cpu_time()?.saturating_sub(before);
    let workers = if program == Program::Prefork { Counts::of(&counts)?.all() } else { Vec::new() };
    let fields = json!({
        "case": case,
        "program": program,
        "variant": variant,
        "connections_per_s": load.requests / plan.length.as_secs_f64(),
        "server_cpu_us_per_connection": cpu.as_secs_f64() * 1e6 / load.requests.max(1.0),
        "answered": load.requests,
        "errors": load.failures,
        "unfinished": load.unanswered,
        "slow": load.slow,
        "stuck": load.stuck,
        "p50_us": load.p50_us,
        "p99_us": load.p99_us,
        "p999_us": load.p999_us,
        "workers": workers,
    });
    Ok(Record::new("measurement", fields))
}

/// Short connections with one request each, at a share of the case's rate. Latencies are from when their connection was due to the end of the
/// answer; those of requests that block are not reported.
fn load(plan: &Plan, case: Case, address: SocketAddr, request: Request, share: f64) -> Options {
    let (connections, rate) = case.connections();
    Options {
        engine: load::Engine::Epoll,
        target: Target::Tcp(address),
        request,
        lifetime: Connections::Short,
        connections,
        active: connections,
        rate: rate.map(|rate| rate * share),
        spin: false,
        warm_up: Duration::ZERO,
        window: plan.length,
        patience: Some(PATIENCE),
    }
}

/// Workers or threads of each server, each on a CPU of its own.
const WORKERS: usize = 2;
/// How long a worker that is to end is stopped before.
const HANG: Duration = Duration::from_millis(500);
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Share of the requests that come beside the others and block their worker.
const BLOCKING: f64 = 0.005;
/// Each measurement has a port of its own, on which no connection of an earlier one is left.
const FIRST_PORT: u16 = 20_000;
