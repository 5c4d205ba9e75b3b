//! Listen queues of unmodified servers: one that all workers share, one for each of them by the server's own switch, and
//! `megapipe run --local-listen`, which has both. Beside them servers on channels: one listener, and partitioned ones.
//!
//! Client and server are in two network namespaces that a veth pair joins, with packets spread over all CPUs (RPS). Each
//! measurement starts its server anew; sides alternate, and the shared queue is measured twice, so that its own spread
//! stands beside the others' ratios.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::child::{Child, Failure};
use crate::names::names;
use crate::part::Part;
use crate::progress::{self, Listener, Progress};
use crate::record::Record;

pub mod channels;
mod disturbance;
pub mod load;
mod network;
mod programs;
pub mod server;

pub use programs::{Program, get};

use load::{Outcome, Pace};
use network::Network;
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

    fn pace(self) -> Pace {
        match self {
            Case::Short => Pace::AtATime(64),
            _ => Pace::Rate(800),
        }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again as load and server.
    pub program: PathBuf,
    /// The program `megapipe`.
    pub megapipe: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Which cases.
    pub cases: Vec<Case>,
    /// Which variants.
    pub variants: Vec<Variant>,
    /// Length of each load.
    pub length: Duration,
    /// Measurements of everything.
    pub rounds: u32,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No namespaces.
    #[error("cannot make two network namespaces; this needs root and ip(8)")]
    Network(#[source] io::Error),
    /// No folder for the servers.
    #[error("cannot make a temporary folder")]
    Folder(#[source] io::Error),
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
}

impl Plan {
    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        let servers: usize = self.cases.iter().map(|case| case.programs().len()).sum();
        servers * self.variants.len() * self.rounds as usize
    }
}

/// Runs the plan until it is complete or `stop` is set.
///
/// # Errors
///
/// No namespaces, or a record that the caller cannot take.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_>) -> Result<progress::Outcome, RunError> {
    let mut tell = |progress: Progress<'_>| report(progress).map_err(RunError::Report);
    tell(Progress::Record(&header(plan)))?;
    let network = Network::new().map_err(RunError::Network)?;
    let folder = tempfile::tempdir().map_err(RunError::Folder)?;
    let mut absent = Vec::new();
    let mut port = FIRST_PORT;
    for round in 1..=plan.rounds {
        for (case, program) in
            plan.cases.iter().flat_map(|case| case.programs().iter().map(|one| (*case, *one)))
        {
            // Each round begins with another variant, so that none has the best place always.
            let first = round as usize % plan.variants.len();
            for &variant in plan.variants.iter().cycle().skip(first).take(plan.variants.len()) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(progress::Outcome::Stopped);
                }
                let names = [case.name(), program.name(), variant.name()];
                tell(Progress::Measuring(names.join(", ")))?;
                let side = (case, program, variant);
                if !absent.contains(&side) {
                    port += 1;
                    match measure(plan, &network, side, port, folder.path()) {
                        Ok(measured) => {
                            tell(Progress::Record(&measured.with(json!({ "round": round }))))?;
                        }
                        Err(Failure::Stopped) => return Ok(progress::Outcome::Stopped),
                        Err(Failure::Because(reason)) => {
                            absent.push(side);
                            let place = json!({ "case": case, "program": program, "variant": variant });
                            tell(Progress::Record(&Record::absent(place, &reason)))?;
                        }
                    }
                }
                tell(Progress::Done)?;
            }
        }
    }
    Ok(progress::Outcome::Complete)
}

fn measure(
    plan: &Plan,
    network: &Network,
    (case, program, variant): (Case, Program, Variant),
    port: u16,
    folder: &Path,
) -> Result<Record, Failure> {
    // What is measured has to do without it.
    network.set("net.ipv4.tcp_migrate_req", "0")?;
    let address = SocketAddr::new(Network::address(), port);
    let mut server = Server::start(plan, network, (program, variant), address, folder)?;
    let mut client = start_load(plan, network, case, address)?;
    match case {
        Case::Stopped | Case::Killed => {
            // Before the end of the load there is time to see what follows.
            thread::sleep(plan.length.mul_f64(0.25));
            match case {
                Case::Stopped => server.stop_a_worker(Duration::from_secs(1))?,
                _ => server.kill_a_worker(Duration::from_millis(500))?,
            }
        }
        Case::Short | Case::Locality | Case::Blocked => {}
    }
    let words = client.wait()?;
    let printed = client.stdout.take().map(crate::child::text).unwrap_or_default();
    if !words.success() {
        return Err(client.complaint().unwrap_or("the load has failed".into()).into());
    }
    let outcome: Outcome = serde_json::from_str(&printed).map_err(io::Error::from)?;
    let workers: Vec<Counts> = match program {
        Program::Prefork => {
            let counts = programs::ask(network, &plan.program, address)?;
            serde_json::from_str(&counts).map_err(io::Error::from)?
        }
        _ => Vec::new(),
    };
    let side = json!({ "case": case, "program": program, "variant": variant, "workers": workers });
    Ok(Record::new("measurement", outcome).with(side))
}

fn start_load(plan: &Plan, network: &Network, case: Case, address: SocketAddr) -> io::Result<Child> {
    let task = load::Task {
        server: address,
        pace: case.pace(),
        length: plan.length,
        blocking_every: if case == Case::Blocked { BLOCKING_EVERY } else { 0 },
    };
    let mut command = network.in_client(&plan.program.to_string_lossy());
    Child::start(command.args(Part::ListenLoad(task).arguments()))
}

fn header(plan: &Plan) -> Record {
    let fields = json!({
        "scenario": "listen",
        "seconds": plan.length.as_secs_f64(),
        "rounds": plan.rounds,
    });
    Record::header(&plan.command, fields)
}

/// 0.5 %.
const BLOCKING_EVERY: u64 = 200;
/// Each measurement has a port of its own, on which no connection of an earlier one is left.
const FIRST_PORT: u16 = 20_000;
