//! `megapipe-bench rpc`: small requests and responses over TCP.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bench::cpu::CpuSet;
use bench::engine::Engine;
use bench::record::Record;
use bench::rpc::{self, Plan, Rate};
use bench::{floor, load, peer, plot, table};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::flags::{
    Extent, FEWEST_REQUESTS, PROGRAM, Unusable, check_cpus, command_line, distinct, json_file, one_of,
    or_all, svg_file, whole,
};
use super::part_ended;
use super::report::{Report, View};

#[derive(Args)]
pub(super) struct Rpc {
    /// Servers to compare [default: all that this program is built with]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = one_of(Engine::ALL, Engine::name))]
    engines: Vec<Engine>,
    /// Transactions per connection
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "1,10,128")]
    #[arg(value_parser = whole(1..=1_000_000_000))]
    transactions: Vec<u32>,
    /// Bytes of a request, and of its response, up to 1 MiB
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "64")]
    #[arg(value_parser = whole(1..=1 << 20))]
    sizes: Vec<u32>,
    /// Concurrent connections, up to 10000
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "256")]
    #[arg(value_parser = whole(1..=10_000))]
    connections: Vec<u32>,
    /// CPUs of the server, one thread each, such as 0,2-3; give it several times to compare
    /// numbers of cores [default: the first CPU]
    #[arg(long, value_name = "CPUS")]
    server_cpus: Vec<CpuSet>,
    /// CPUs of the client, one thread each [default: the last CPU]
    #[arg(long, value_name = "CPUS")]
    client_cpus: Option<CpuSet>,
    /// What the client runs on [default: io-uring where it is permitted]
    #[arg(long, value_name = "NAME", value_parser = client_parser())]
    client: Option<load::Engine>,
    #[command(flatten)]
    extent: Extent,
    /// Send so many requests per second over all connections, whatever the server does, and count
    /// latency from when each was due; `half` is half of what the better epoll server does without
    /// it [default: each connection sends when it has its answer]
    #[arg(long, value_name = "NUMBER|half", value_parser = rate)]
    rate: Option<Rate>,
    /// Write one JSON object per line: a header, then a record per engine, point and round
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

/// One server, as the controller starts it.
#[derive(Args)]
pub(super) struct Peer {
    #[arg(long, value_parser = one_of(Engine::ALL, Engine::name))]
    engine: Engine,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    connections: usize,
    #[arg(long)]
    cpus: CpuSet,
}

/// The server of the floor measurement, as the controller starts it.
#[derive(Args)]
pub(super) struct Floor {
    #[arg(long)]
    cpu: usize,
    #[arg(long)]
    size: usize,
}

impl Rpc {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan(&CpuSet::allowed()?)?;
        let mut report = Report::begin(plan.measurements(), self.json, self.plot)?;
        let ended = rpc::run(&plan, &report.stop(), &mut |progress| report.hear(progress));
        let records = report.end(ended, &VIEW)?;
        Ok(records.iter().any(VIEW.is_measurement))
    }

    fn plan(&self, allowed: &CpuSet) -> Result<Plan, Unusable> {
        let server_cpus = match self.server_cpus.as_slice() {
            [] => vec![allowed.first()],
            sets => sets.to_vec(),
        };
        let client_cpus = self.client_cpus.clone().unwrap_or_else(|| allowed.last());
        for set in &server_cpus {
            check_cpus("--server-cpus", set, allowed)?;
        }
        check_cpus("--client-cpus", &client_cpus, allowed)?;
        for set in &server_cpus {
            if set.missing_from(&client_cpus).len() < set.len() {
                eprintln!(
                    "note: server and client share CPUs ({set} and {client_cpus}); they will take \
                     turns, and latency will show it"
                );
            }
        }
        let connections =
            distinct(&self.connections).into_iter().map(|count| count as usize).collect::<Vec<_>>();
        let most = connections.iter().copied().max().unwrap_or(1);
        let client = self.client.unwrap_or_else(|| load::Engine::best(most));
        let plan = Plan {
            program: PROGRAM.into(),
            command: command_line(),
            engines: or_all(&self.engines, &Engine::built().collect::<Vec<_>>()),
            transactions: self.transactions.clone(),
            sizes: self.sizes.iter().map(|&size| size as usize).collect(),
            connections,
            server_cpus,
            client,
            client_cpus,
            window: self.extent.seconds,
            rounds: self.extent.rounds,
            rate: self.rate,
        };
        match plan.rate {
            Some(Rate::Half) if plan.baselines().next().is_none() => Err(Unusable::NoBaseline),
            Some(Rate::PerSecond(rate)) if rate as f64 * plan.window.as_secs_f64() < FEWEST_REQUESTS => {
                Err(Unusable::FewRequests { rate, seconds: plan.window })
            }
            _ => Ok(plan),
        }
    }
}

const VIEW: View<Record> = View {
    table: table::render,
    plot: Some(plot::draw),
    is_measurement: |record| matches!(record, Record::Measurement(_)),
};

impl Peer {
    pub(super) fn run(self) -> ExitCode {
        let Peer { engine, listen, size, connections, cpus } = self;
        let served = peer::serve(&peer::Options { engine, listen, size, connections, cpus });
        part_ended(served.map(|never| match never {}))
    }
}

impl Floor {
    pub(super) fn run(self) -> ExitCode {
        part_ended(floor::serve(self.cpu, self.size))
    }
}

fn client_parser() -> impl TypedValueParser<Value = load::Engine> {
    PossibleValuesParser::new(["io-uring", "epoll"]).map(|name| match name.as_str() {
        "epoll" => load::Engine::Epoll,
        _ => load::Engine::IoUring,
    })
}

fn rate(text: &str) -> Result<Rate, String> {
    match (text, text.parse()) {
        ("half", _) => Ok(Rate::Half),
        (_, Ok(number @ 1..=10_000_000)) => Ok(Rate::PerSecond(number)),
        _ => Err("give a whole number of requests per second from 1 to 10000000, or half".to_owned()),
    }
}
