//! The micro-benchmark of the MegaPipe paper (OSDI 2012, section 5.1, Figure 1).
//!
//! Every engine is measured at every point of the plan, once per round. Within a round the engines
//! take turns at each point, and each round starts with another one, so that a slow minute of the
//! machine falls on all of them alike.
//!
//! With a [`Rate`] the load is an open loop, which tells latency at a load that all engines bear;
//! without one it is a closed loop, which tells what each can bear.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::child;
use crate::clock;
use crate::cpu::{self, CpuSet};
use crate::engine::Engine;
use crate::floor;
use crate::load::{self, Connections, Load, LoadError, Request, Sample, Target};
use crate::progress::{Listener, Outcome, Progress};
use crate::record::Record;
use crate::server::{Server, StartError};
use crate::syscalls::Counter;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again for each server.
    pub program: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Servers to compare.
    pub engines: Vec<Engine>,
    /// Transactions per connection (Figure 1 a).
    pub transactions: Vec<u32>,
    /// Message sizes in bytes (Figure 1 b).
    pub sizes: Vec<usize>,
    /// Concurrent connections.
    pub connections: Vec<usize>,
    /// CPUs of the server, one set per value of that axis (Figure 1 c).
    pub server_cpus: Vec<CpuSet>,
    /// What the client runs on.
    pub client: load::Engine,
    /// CPUs of the client.
    pub client_cpus: CpuSet,
    /// Length of one measurement; a warm-up of a quarter goes before it, and a fifth for counting
    /// system calls after it.
    pub window: Duration,
    /// Measurements of each engine at each point.
    pub rounds: u32,
    /// The rate of an open loop; `None` for a closed one.
    pub rate: Option<Rate>,
}

/// How fast requests come, whatever the server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// So many per second over all connections.
    PerSecond(u64),
    /// Half of what the better epoll baseline of the plan does in a closed loop at the same point,
    /// measured in the first round, and then the same for every engine and round.
    Half,
}

/// One place on the axes of the figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Transactions per connection.
    pub transactions: u32,
    /// Message size in bytes.
    pub size: usize,
    /// Concurrent connections.
    pub connections: usize,
    /// CPUs of the server.
    pub server_cpus: CpuSet,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The client cannot be pinned, or a clock not be read.
    #[error("cannot control the measurement")]
    Control(#[source] io::Error),
    /// The kernel's floor cannot be measured.
    #[error("cannot measure what the kernel's own calls cost")]
    Floor(#[source] io::Error),
    /// A server process cannot be started at all.
    #[error(transparent)]
    Start(StartError),
    /// The client fails, whatever the server.
    #[error(transparent)]
    Load(LoadError),
    /// There is no throughput to take half of.
    #[error("no epoll server answered, so half of its throughput is unknown; give --rate a number")]
    NoBaseline,
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
}

impl Plan {
    /// All points, in the order in which they are measured.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for server_cpus in &self.server_cpus {
            for &connections in &self.connections {
                for &size in &self.sizes {
                    for &transactions in &self.transactions {
                        points.push(Point {
                            transactions,
                            size,
                            connections,
                            server_cpus: server_cpus.clone(),
                        });
                    }
                }
            }
        }
        points
    }

    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        let of_baselines = match self.rate {
            Some(Rate::Half) => self.baselines().count(),
            _ => 0,
        };
        self.points().len() * (self.engines.len() * self.rounds as usize + of_baselines)
    }

    /// Those of the engines that are baselines.
    pub fn baselines(&self) -> impl Iterator<Item = Engine> + '_ {
        self.engines.iter().copied().filter(|engine| Engine::BASELINES.contains(engine))
    }

    fn warm_up(&self) -> Duration {
        (self.window / 4).max(Duration::from_millis(50))
    }

    fn counting_time(&self) -> Duration {
        (self.window / 5).max(Duration::from_millis(50))
    }
}

/// Runs the plan until it is complete or `stop` is set.
///
/// The calling thread moves to the client's CPUs, out of the servers' way.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_>) -> Result<Outcome, RunError> {
    let mut run = Run { plan, stop, report, absent: Vec::new() };
    run.report(Progress::Record(&header(plan)))?;
    cpu::pin(plan.client_cpus.as_slice()).map_err(RunError::Control)?;
    child::raise_descriptor_limit().map_err(RunError::Control)?;
    let points = plan.points();
    let mut halves = Vec::with_capacity(points.len());
    for round in 1..=plan.rounds {
        for &size in &plan.sizes {
            let cpu = plan.server_cpus[0].as_slice()[0];
            let floor = floor::measure(&plan.program, cpu, size).map_err(RunError::Floor)?;
            let floor = Record::new("floor", floor).with(json!({ "round": round }));
            run.report(Progress::Record(&floor))?;
        }
        for (index, point) in points.iter().enumerate() {
            let rate = match plan.rate {
                None => None,
                Some(Rate::PerSecond(rate)) => Some(rate),
                Some(Rate::Half) => {
                    if round == 1 {
                        let Some(half) = run.half(point)? else { return Ok(Outcome::Stopped) };
                        halves.push(half);
                    }
                    Some(halves[index])
                }
            };
            for turn in 0..plan.engines.len() {
                let engine = plan.engines[(turn + round as usize - 1) % plan.engines.len()];
                match run.measure(&Turn { engine, point, round, rate })? {
                    Measured::Stopped => return Ok(Outcome::Stopped),
                    Measured::Complete(_) | Measured::Absent(_) => {}
                }
            }
        }
    }
    Ok(Outcome::Complete)
}

/// A run at work.
struct Run<'run> {
    plan: &'run Plan,
    stop: &'run AtomicBool,
    report: &'run mut Listener<'run>,
    absent: Vec<Engine>,
}

/// One engine at one point in one round.
struct Turn<'run> {
    engine: Engine,
    point: &'run Point,
    round: u32,
    rate: Option<u64>,
}

impl Run<'_> {
    fn report(&mut self, progress: Progress<'_>) -> Result<(), RunError> {
        (self.report)(progress).map_err(RunError::Report)
    }

    /// Half of the better baseline's throughput; `None` if the run was stopped.
    fn half(&mut self, point: &Point) -> Result<Option<u64>, RunError> {
        let mut best: f64 = 0.0;
        for engine in self.plan.baselines() {
            match self.measure(&Turn { engine, point, round: 1, rate: None })? {
                Measured::Stopped => return Ok(None),
                Measured::Complete(record) => {
                    best = best.max(record.number("transactions_per_s").unwrap_or_default());
                }
                Measured::Absent(_) => {}
            }
        }
        match (best / 2.0) as u64 {
            0 => Err(RunError::NoBaseline),
            half => Ok(Some(half)),
        }
    }

    /// Measures and reports, unless the engine was found absent before.
    fn measure(&mut self, turn: &Turn<'_>) -> Result<Measured, RunError> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(Measured::Stopped);
        }
        let mut measured = Measured::Absent(String::new());
        if !self.absent.contains(&turn.engine) {
            let Turn { engine, point, .. } = turn;
            let what = format!("{}, {} per connection, {} B", engine.name(), point.transactions, point.size);
            self.report(Progress::Measuring(what))?;
            measured = attempt(self.plan, turn, self.stop)?;
            match &measured {
                Measured::Stopped => return Ok(measured),
                Measured::Complete(record) => self.report(Progress::Record(record))?,
                Measured::Absent(reason) => {
                    self.absent.push(turn.engine);
                    let absent = Record::absent(json!({ "engine": turn.engine }), reason);
                    self.report(Progress::Record(&absent))?;
                }
            }
        }
        self.report(Progress::Done)?;
        Ok(measured)
    }
}

enum Measured {
    Complete(Record),
    Absent(String),
    Stopped,
}

/// Measures, and once more if nothing happened: on a machine that others use, too, a client or a
/// server may be left without a CPU for longer than a short window.
fn attempt(plan: &Plan, turn: &Turn<'_>, stop: &AtomicBool) -> Result<Measured, RunError> {
    for _ in 0..ATTEMPTS {
        if let Some(measured) = measure(plan, turn, stop)? {
            return Ok(measured);
        }
    }
    Ok(Measured::Absent(format!("it answered nothing in {ATTEMPTS} attempts")))
}

/// `None` if there was not one transaction.
fn measure(plan: &Plan, turn: &Turn<'_>, stop: &AtomicBool) -> Result<Option<Measured>, RunError> {
    let Turn { engine, point, round, rate } = *turn;
    let started = Server::start(&plan.program, engine, point.size, point.connections, &point.server_cpus);
    let server = match started {
        Ok(server) => server,
        Err(StartError::Refused(reason)) => return Ok(Some(Measured::Absent(reason))),
        Err(error) => return Err(RunError::Start(error)),
    };
    let options = load::Options {
        engine: plan.client,
        target: Target::Tcp(server.address()),
        request: Request::Echo(point.size),
        instead: None,
        lifetime: Connections::Reset(point.transactions),
        connections: point.connections,
        active: point.connections,
        rate: rate.map(|rate| rate as f64),
        warm_up: plan.warm_up() + CLEARANCE,
        window: plan.window,
        spin: plan.client_cpus.missing_from(&point.server_cpus).len() == plan.client_cpus.len(),
    };
    let load = Load::start(&options, &plan.client_cpus).map_err(RunError::Load)?;
    let window = match observe(plan, rate, &server, &load, stop)? {
        Observed::Window(window) => window,
        Observed::Stopped => return Ok(Some(Measured::Stopped)),
        Observed::Silent => return Ok(None),
        Observed::Broken => {
            return match load.stop() {
                Err(error @ LoadError::Server(..)) => Ok(Some(Measured::Absent(crate::with_causes(&error)))),
                Err(error) => Err(RunError::Load(error)),
                Ok(_) => Ok(None),
            };
        }
    };
    let outcome = load.stop().map_err(RunError::Load)?;
    let quantile = |quantile| outcome.latencies.value_at_quantile(quantile) as f64 / 1000.0;
    let seconds = (window.end.at - window.begin.at).as_secs_f64();
    let transactions = (window.end.transactions - window.begin.transactions) as f64;
    let connections = (window.end.connections - window.begin.connections) as f64;
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
        "round": round,
        "transactions_per_s": transactions / seconds,
        "connections_per_s": connections / seconds,
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
    Ok(Some(Measured::Complete(Record::new("measurement", fields))))
}

/// The measuring window, seen from both sides.
struct Window {
    begin: Sample,
    end: Sample,
    server_cpu: Duration,
    server_waited: Option<Duration>,
    syscalls_per_transaction: Option<f64>,
}

enum Observed {
    Window(Window),
    Silent,
    Broken,
    Stopped,
}

fn observe(
    plan: &Plan,
    rate: Option<u64>,
    server: &Server,
    load: &Load,
    stop: &AtomicBool,
) -> Result<Observed, RunError> {
    let sample = || load.sample().map_err(RunError::Load);
    let server_cpu = || clock::of_process(server.pid()).map_err(RunError::Control);
    // Ends early, with `Some`, if there is nothing to wait for any more.
    let wait_until = |moment| match pause(moment, load, stop) {
        Waited::InFull => None,
        Waited::Broken => Some(Observed::Broken),
        Waited::Stopped => Some(Observed::Stopped),
    };
    // Samples take a client's CPU for a moment, so they stay clear of the window.
    let window = load.window();
    if let Some(early) = wait_until(window.start - CLEARANCE) {
        return Ok(early);
    }
    let (begin, cpu_before) = (sample()?, server_cpu()?);
    let waited_before = clock::waited_for_cpu(server.pid());
    if let Some(early) = wait_until(window.end + CLEARANCE) {
        return Ok(early);
    }
    let (end, cpu_after) = (sample()?, server_cpu()?);
    let waited_after = clock::waited_for_cpu(server.pid());
    if begin.transactions == end.transactions {
        return Ok(Observed::Silent);
    }
    let mut syscalls_per_transaction = None;
    if let Ok(counter) = Counter::attach(server.pid()) {
        let (before, calls_before) = (sample()?, counter.count());
        if let Some(early) = wait_until(Instant::now() + plan.counting_time()) {
            return Ok(early);
        }
        let (after, calls_after) = (sample()?, counter.count());
        let transactions = after.transactions - before.transactions;
        if transactions > 0 {
            let calls = (calls_after - calls_before) as f64;
            syscalls_per_transaction = Some(calls / transactions as f64);
        }
    } else if rate.is_some()
        && let Some(early) = wait_until(Instant::now() + plan.counting_time())
    {
        return Ok(early); // else what is still under way has time to be answered
    }
    let server_waited = Option::zip(waited_before, waited_after);
    Ok(Observed::Window(Window {
        begin,
        end,
        server_cpu: cpu_after - cpu_before,
        server_waited: server_waited.map(|(before, after)| after.saturating_sub(before)),
        syscalls_per_transaction,
    }))
}

enum Waited {
    InFull,
    Broken,
    Stopped,
}

fn pause(end: Instant, load: &Load, stop: &AtomicBool) -> Waited {
    loop {
        if stop.load(Ordering::Relaxed) {
            return Waited::Stopped;
        }
        if load.is_broken() {
            return Waited::Broken;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Waited::InFull;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn header(plan: &Plan) -> Record {
    let counter = Counter::attach(std::process::id()).ok();
    let fields = json!({
        "client": plan.client,
        "client_cpus": plan.client_cpus.as_slice(),
        "syscall_counter": counter.map(|_| "BPF program on raw_syscalls:sys_enter"),
        "seconds": plan.window.as_secs_f64(),
        "rounds": plan.rounds,
    });
    Record::header(&plan.command, fields)
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
