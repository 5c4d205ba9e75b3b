//! The micro-benchmark of the MegaPipe paper (OSDI 2012, section 5.1, Figure 1).
//!
//! Every engine is measured at every point of the plan, once per round. Within a round the engines
//! take turns at each point, and each round starts with another one, so that a slow minute of the
//! machine falls on all of them alike.
//!
//! With `--rate` the load is an open loop, whose latency is at a load that all engines bear;
//! without one it is a closed loop, which tells what each can bear.

use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use sys::file::raise_open_files;

use crate::Reason;
use crate::child::Child;
use crate::clock;
use crate::cpu::{self, CpuSet};
use crate::engine::Engine;
use crate::floor;
use crate::load::{self, Connections, Load, LoadError, Request, Sample, Target};
use crate::options::{check_cpus, cpu_ends, seconds, this_program, whole};
use crate::part::Part;
use crate::peer;
use crate::record::Record;
use crate::run::{Run, RunError, Scenario, Unusable, in_turn, pause};
use crate::syscalls::Counter;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Servers to compare, of those that this program is built with
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Engine::built())]
    engines: Vec<Engine>,
    /// Transactions per connection
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "1,10,128")]
    #[arg(value_parser = whole(1..=1_000_000_000_u32))]
    transactions: Vec<u32>,
    /// Bytes of a request, and of its response, up to 1 MiB
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "64")]
    #[arg(value_parser = whole(1..=1_usize << 20))]
    sizes: Vec<usize>,
    /// Concurrent connections, up to 10000
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "256")]
    #[arg(value_parser = whole(1..=10_000_usize))]
    connections: Vec<usize>,
    /// CPUs of the server, one thread each, such as 0,2-3; give it several times to compare
    /// numbers of cores
    #[arg(long, value_name = "CPUS", default_values_t = [cpu_ends().first()])]
    server_cpus: Vec<CpuSet>,
    /// CPUs of the client, one thread each
    #[arg(long, value_name = "CPUS", default_value_t = cpu_ends().last())]
    client_cpus: CpuSet,
    /// Length of each measurement; a warm-up of a quarter goes before it, and a fifth for counting
    /// system calls after it
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    window: Duration,
    /// Send so many requests per second over all connections, whatever the server does, and count
    /// latency from when each was due; `half` is half of what the better epoll server does without
    /// it, measured in the first round, and the same for all [default: each connection sends when it
    /// has its answer]
    #[arg(long, value_name = "NUMBER|half")]
    rate: Option<Rate>,
}

/// How fast requests come, whatever the server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    PerSecond(u64),
    Half,
}

impl FromStr for Rate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("half", _) => Ok(Rate::Half),
            (_, Ok(number @ 1..=10_000_000)) => Ok(Rate::PerSecond(number)),
            _ => Err("give a whole number of requests per second from 1 to 10000000, or half"),
        }
    }
}

/// One place on the axes of the figure.
#[derive(Debug, Clone, Copy)]
struct Point<'plan> {
    transactions: u32,
    size: usize,
    connections: usize,
    server_cpus: &'plan CpuSet,
}

impl Plan {
    /// All points, in the order in which they are measured.
    fn points(&self) -> Vec<Point<'_>> {
        let mut points = Vec::new();
        for server_cpus in &self.server_cpus {
            for &connections in &self.connections {
                for &size in &self.sizes {
                    let of = |&transactions| Point { transactions, size, connections, server_cpus };
                    points.extend(self.transactions.iter().map(of));
                }
            }
        }
        points
    }

    /// Those of the engines that are baselines.
    fn baselines(&self) -> impl Iterator<Item = Engine> + '_ {
        self.engines.iter().copied().filter(|engine| Engine::BASELINES.contains(engine))
    }

    fn warm_up(&self) -> Duration {
        (self.window / 4).max(Duration::from_millis(50))
    }

    fn counting_time(&self) -> Duration {
        (self.window / 5).max(Duration::from_millis(50))
    }

    fn client(&self) -> load::Engine {
        load::Engine::best(self.connections.iter().copied().max().unwrap_or(1))
    }

    /// Measures and reports an engine at a point; none if it is absent.
    fn measure(
        &self,
        run: &mut Run<'_>,
        engine: Engine,
        point: &Point<'_>,
        round: u32,
        rate: Option<u64>,
    ) -> Result<Option<Record>, RunError> {
        let what = format!("{engine}, {} per connection, {} B", point.transactions, point.size);
        let stop = run.stop;
        run.measure(round, what, json!({ "engine": engine }), || {
            // Once more if nothing happened: on a machine that others use, too, a client or a server may be left
            // without a CPU for longer than a short window.
            for _ in 0..ATTEMPTS {
                if let Some(measured) = measure(self, engine, point, rate, stop)? {
                    return Ok(measured);
                }
            }
            Err(format!("it answered nothing in {ATTEMPTS} attempts").into())
        })
    }

    /// Half of the better baseline's throughput.
    fn half(&self, run: &mut Run<'_>, point: &Point<'_>) -> Result<u64, RunError> {
        let mut best: f64 = 0.0;
        for engine in self.baselines() {
            if let Some(record) = self.measure(run, engine, point, 1, None)? {
                best = best.max(record.number("transactions_per_s").unwrap_or_default());
            }
        }
        match (best / 2.0) as u64 {
            0 => Err(RunError::lacks("half of no throughput is unknown")(
                "no epoll server answered; give --rate a number",
            )),
            half => Ok(half),
        }
    }
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        check_cpus("--client-cpus", &self.client_cpus)?;
        for set in &self.server_cpus {
            check_cpus("--server-cpus", set)?;
            let client = &self.client_cpus;
            if set.missing_from(client).len() < set.len() {
                eprintln!(
                    "note: server and client share CPUs ({set} and {client}); they will take turns, and latency will \
                     show it"
                );
            }
        }
        let seconds = self.window.as_secs_f64();
        let closed = match self.rate {
            Some(Rate::Half) => self.baselines().count(),
            _ => 0,
        };
        match self.rate {
            Some(Rate::Half) if closed == 0 => Err(Unusable(
                "--rate half is half of what an epoll server does: add epoll-reuseport to --engines, or give a number"
                    .to_owned(),
            ))?,
            Some(Rate::PerSecond(rate)) if rate as f64 * seconds < FEWEST_REQUESTS => Err(Unusable(format!(
                "--rate: {rate} requests per second are fewer than {FEWEST_REQUESTS} in {seconds} s; give a higher \
                 --rate, or more --seconds"
            )))?,
            _ => {}
        }
        Ok(self.points().len() * (self.engines.len() * rounds as usize + closed))
    }

    /// The calling thread moves to the client's CPUs, out of the servers' way.
    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        let counter = Counter::attach(std::process::id()).ok();
        run.header(json!({
            "client": self.client(),
            "client_cpus": self.client_cpus.as_slice(),
            "syscall_counter": counter.map(|_| "BPF program on raw_syscalls:sys_enter"),
            "seconds": self.window.as_secs_f64(),
        }))?;
        cpu::pin(self.client_cpus.as_slice()).map_err(RunError::lacks("the client cannot have its CPUs"))?;
        raise_open_files(u64::MAX).map_err(RunError::lacks("the client cannot have its descriptors"))?;
        let points = self.points();
        let mut halves = Vec::with_capacity(points.len());
        for round in 1..=run.rounds {
            for &size in &self.sizes {
                let floor = floor::measure(self.server_cpus[0].as_slice()[0], &self.client_cpus, size)
                    .map_err(RunError::lacks("cannot measure what the kernel's own calls cost"))?;
                run.record(Record::new("floor", floor).with(json!({ "round": round })))?;
            }
            for (index, point) in points.iter().enumerate() {
                if self.rate == Some(Rate::Half) && round == 1 {
                    halves.push(self.half(run, point)?);
                }
                let rate = self.rate.map(|rate| match rate {
                    Rate::PerSecond(rate) => rate,
                    Rate::Half => halves[index],
                });
                for engine in in_turn(&self.engines, round) {
                    self.measure(run, engine, point, round, rate)?;
                }
            }
        }
        Ok(())
    }
}

/// `None` if there was not one transaction.
fn measure(
    plan: &Plan,
    engine: Engine,
    point: &Point<'_>,
    rate: Option<u64>,
    stop: &AtomicBool,
) -> Result<Option<Record>, Reason> {
    let (server, port) = start(engine, point)?;
    let options = load::Options {
        engine: plan.client(),
        target: Target::Tcp((Ipv4Addr::LOCALHOST, port).into()),
        request: Request::Echo(point.size),
        lifetime: Connections::Reset(point.transactions),
        connections: point.connections,
        active: point.connections,
        rate: rate.map(|rate| rate as f64),
        warm_up: plan.warm_up() + CLEARANCE,
        window: plan.window,
        patience: None,
        spin: plan.client_cpus.missing_from(point.server_cpus).len() == plan.client_cpus.len(),
    };
    let load = Load::start(&options, &plan.client_cpus).map_err(client_failed)?;
    let observed = observe(plan, rate, &server, &load, stop);
    let outcome = load.stop().map_err(client_failed)?;
    let Some(window) = observed? else { return Ok(None) };
    let quantile = |quantile| outcome.latencies.value_at_quantile(quantile) as f64 / 1000.0;
    let seconds = (window.end.at - window.begin.at).as_secs_f64();
    let transactions = (window.end.transactions - window.begin.transactions) as f64;
    let client_spun = window.end.spun - window.begin.spun;
    let client_cpu = (window.end.cpu - window.begin.cpu).saturating_sub(client_spun).as_secs_f64();
    let server_cpu = window.server_cpu.as_secs_f64();
    let server_cpus = point.server_cpus.len() as f64;
    let client_utilization = client_cpu / seconds / plan.client_cpus.len() as f64;
    let due = outcome.latencies.len();
    let lag = outcome.lag.value_at_quantile(0.99) as f64 / 1000.0;
    // What kept the load from its schedule.
    let limit = rate.and_then(|rate| {
        let missing = rate as f64 * seconds - transactions;
        // What is under way is missing, too, yet that is one request of each connection at most.
        let behind = missing > (due as f64 * TOLERANCE).max(point.connections as f64);
        let busy = client_utilization > BUSY;
        match (behind && busy) || lag > quantile(0.99) * LARGE_LAG {
            true => Some("client"),
            false => behind.then_some("server"),
        }
    });
    let fields = json!({
        "engine": engine,
        "transactions": point.transactions,
        "size": point.size,
        "connections": point.connections,
        "server_cpus": point.server_cpus.as_slice(),
        "transactions_per_s": transactions / seconds,
        "server_cpu_ns_per_transaction": server_cpu * 1e9 / transactions,
        "syscalls_per_transaction": window.syscalls_per_transaction,
        "p50_us": quantile(0.5),
        "p99_us": quantile(0.99),
        "p999_us": quantile(0.999),
        "client_cpu_ns_per_transaction": client_cpu * 1e9 / transactions,
        "server_utilization": server_cpu / seconds / server_cpus,
        "client_utilization": client_utilization,
        "server_waited": window.server_waited.map(|waited| waited.as_secs_f64() / seconds / server_cpus),
        "failures": window.end.failures - window.begin.failures,
        "rate": rate,
        "requests_due": rate.map(|_| due),
        "requests_unanswered": rate.map(|_| outcome.unanswered),
        "client_lag_us": rate.map(|_| lag),
        "limit": limit,
    });
    Ok(Some(Record::new("measurement", fields)))
}

/// A server on a free port.
fn start(engine: Engine, point: &Point<'_>) -> Result<(Child, u16), Reason> {
    let server = peer::Options {
        engine,
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        size: point.size,
        connections: point.connections,
        cpus: point.server_cpus.clone(),
    };
    let mut command = server.command(&this_program());
    command.env_remove("MEGAPIPE_ENGINE"); // the engine's name says which one to measure
    let (server, port) = Child::listening(&mut command)?;
    Ok((server, port.parse()?))
}

/// The measuring window, seen from both sides.
struct Window {
    begin: Sample,
    end: Sample,
    server_cpu: Duration,
    server_waited: Option<Duration>,
    syscalls_per_transaction: Option<f64>,
}

/// Unless it is the server that fails, the client does, whatever the server.
fn client_failed(error: LoadError) -> Reason {
    match error {
        error @ LoadError::Server(..) => error.into(),
        error => RunError::lacks("the client cannot go on")(error).into(),
    }
}

/// `None` if there was not one transaction.
fn observe(
    plan: &Plan,
    rate: Option<u64>,
    server: &Child,
    load: &Load,
    stop: &AtomicBool,
) -> Result<Option<Window>, Reason> {
    let sample = || load.sample().map_err(client_failed);
    let server_cpu = || clock::of_process(server.pid());
    // Samples take a client's CPU for a moment, so they stay clear of the window.
    let window = load.window();
    pause(window.start - CLEARANCE, stop)?;
    let (begin, cpu_before) = (sample()?, server_cpu()?);
    let waited_before = clock::waited_for_cpu(server.pid());
    pause(window.end + CLEARANCE, stop)?;
    let (end, cpu_after) = (sample()?, server_cpu()?);
    let waited_after = clock::waited_for_cpu(server.pid());
    if begin.transactions == end.transactions {
        return Ok(None);
    }
    let mut syscalls_per_transaction = None;
    if let Ok(counter) = Counter::attach(server.pid()) {
        let (before, calls_before) = (sample()?, counter.count());
        pause(Instant::now() + plan.counting_time(), stop)?;
        let (after, calls_after) = (sample()?, counter.count());
        let transactions = after.transactions - before.transactions;
        if transactions > 0 {
            let calls = (calls_after - calls_before) as f64;
            syscalls_per_transaction = Some(calls / transactions as f64);
        }
    } else if rate.is_some() {
        pause(Instant::now() + plan.counting_time(), stop)?; // for what is still under way
    }
    let server_waited = Option::zip(waited_before, waited_after);
    Ok(Some(Window {
        begin,
        end,
        server_cpu: cpu_after - cpu_before,
        server_waited: server_waited.map(|(before, after)| after.saturating_sub(before)),
        syscalls_per_transaction,
    }))
}

/// How often a measurement in which nothing happens is made.
const ATTEMPTS: u32 = 3;

/// Between a sample and the window in which latencies are recorded.
const CLEARANCE: Duration = Duration::from_millis(2);

/// Share of the requests due that may be missing when a schedule counts as kept.
const TOLERANCE: f64 = 0.01;

/// Utilization from which on a client that is behind its schedule is itself the limit.
const BUSY: f64 = 0.95;

/// Share of the 99th percentile from which on the client's own lag makes it.
const LARGE_LAG: f64 = 0.5;

/// Fewer requests in a measurement have no 99th percentile worth the name.
const FEWEST_REQUESTS: f64 = 100.0;
