//! Listen queues of unmodified servers: one that all workers share, one for each of them by the server's own switch, and
//! `megapipe run --local-listen`, which has both. Beside them servers on channels: one listener, and partitioned ones.
//!
//! Client and server are in two network namespaces that a veth pair joins, with packets spread over all CPUs (RPS). Each
//! measurement starts its server anew; sides alternate, and the shared queue is measured twice, so that its own spread
//! stands beside the others' ratios.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::Reason;
use crate::child::Child;
use crate::names::names;
use crate::options::{seconds, this_program};
use crate::part::Part;
use crate::product;
use crate::record::Record;
use crate::run::{Run, RunError, Scenario, in_turn};

pub mod channels;
mod disturbance;
pub mod load;
mod network;
mod programs;
pub mod server;

pub use programs::{AskCounts, Program};

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
        let servers: usize = self.cases.iter().map(|case| case.programs().len()).sum();
        Ok(servers * self.variants.len() * rounds as usize)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        run.header(json!({ "scenario": "listen", "seconds": self.length.as_secs_f64() }))?;
        let network = Network::new()
            .map_err(RunError::lacks("cannot make two network namespaces; this needs root and ip(8)"))?;
        let folder = tempfile::tempdir().map_err(RunError::lacks("cannot make a temporary folder"))?;
        let mut port = FIRST_PORT;
        for round in 1..=run.rounds {
            let all = self.cases.iter().flat_map(|case| case.programs().iter().map(|one| (*case, *one)));
            for (case, program) in all {
                for variant in in_turn(&self.variants, round) {
                    port += 1;
                    let what = format!("{case}, {program}, {variant}");
                    let place = json!({ "case": case, "program": program, "variant": variant });
                    run.measure(what, place, || {
                        let side = (case, program, variant);
                        let measured = measure(self, &network, side, port, folder.path())?;
                        Ok(measured.with(json!({ "round": round })))
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn measure(
    plan: &Plan,
    network: &Network,
    (case, program, variant): (Case, Program, Variant),
    port: u16,
    folder: &Path,
) -> Result<Record, Reason> {
    // What is measured has to do without it.
    network.set("net.ipv4.tcp_migrate_req", "0")?;
    let address = SocketAddr::new(Network::address(), port);
    let mut server = Server::start(network, (program, variant), address, folder)?;
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
            let counts = programs::ask(network, address)?;
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
    let mut command = network.in_client(this_program());
    Child::start(command.args(task.arguments()))
}

/// 0.5 %.
const BLOCKING_EVERY: u64 = 200;
/// Each measurement has a port of its own, on which no connection of an earlier one is left.
const FIRST_PORT: u16 = 20_000;
