//! `megapipe-bench rpc`: small requests and responses over TCP.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use bench::cpu::CpuSet;
use bench::engine::Engine;
use bench::load;
use bench::record::Record;
use bench::rpc::{self, Plan, Rate};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::flags::{PROGRAM, Unusable, check_cpus, command_line, distinct, or_all, seconds, svg_file, whole};
use super::report::Report;

#[derive(Args)]
pub(super) struct Rpc {
    /// Servers to compare [default: all that this program is built with]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
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
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Send so many requests per second over all connections, whatever the server does, and count
    /// latency from when each was due; `half` is half of what the better epoll server does without
    /// it [default: each connection sends when it has its answer]
    #[arg(long, value_name = "NUMBER|half", value_parser = rate)]
    rate: Option<Rate>,
    #[command(flatten)]
    report: Report,
    /// Draw the medians
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    plot: Option<PathBuf>,
}

impl Rpc {
    pub(super) fn run(self) -> Result<bool, Box<dyn Error>> {
        let plan = self.plan(&CpuSet::allowed()?)?;
        let records = self.report.of(plan.measurements(), self.plot.as_deref(), |stop, listener| {
            rpc::run(&plan, stop, listener)
        })?;
        Ok(records.iter().any(Record::is_measurement))
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
            window: self.seconds,
            rounds: self.report.rounds,
            rate: self.rate,
        };
        match plan.rate {
            Some(Rate::Half) if plan.baselines().next().is_none() => Err(Unusable(
                "--rate half is half of what an epoll server does: add epoll-reuseport to --engines, or give a number"
                    .to_owned(),
            )),
            Some(Rate::PerSecond(rate)) if rate as f64 * plan.window.as_secs_f64() < FEWEST_REQUESTS => {
                let seconds = plan.window.as_secs_f64();
                Err(Unusable(format!(
                    "--rate: {rate} requests per second are fewer than {FEWEST_REQUESTS} in {seconds} s; give a higher \
                     --rate, or more --seconds"
                )))
            }
            _ => Ok(plan),
        }
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

/// Fewer requests in a measurement have no 99th percentile worth the name.
const FEWEST_REQUESTS: f64 = 100.0;
