//! `megapipe bench`: measures Megapipe beside what people use today.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::bench::cpu::CpuSet;
use ::bench::engine::Engine;
use ::bench::record::Record;
use ::bench::rpc::{self, Outcome, Plan, Progress, Rate};
use ::bench::{client, floor, peer, plot, table, with_causes};
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

mod apps;
mod mmsg;
mod pair;
mod promotion;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Small requests and responses over TCP, after the MegaPipe paper (OSDI 2012, Figure 1)
    ///
    /// Measures every combination of --transactions, --sizes, --connections and --server-cpus, each
    /// engine in turn, and prints medians over the rounds. Ctrl-C ends the run and keeps what was
    /// measured.
    Rpc(Rpc),
    /// Round trips between two processes of this host: promoted, TCP, UNIX socket, pipe, bare memory
    ///
    /// Measures every combination of --placements and --sizes, each transport in turn, and prints
    /// medians over the rounds. Ctrl-C ends the run and keeps what was measured.
    Pingpong(pair::Pingpong),
    /// Streams between two processes of this host: promoted, TCP, UNIX socket, pipe, bare copies
    ///
    /// Measures every combination of --placements and --sizes, each transport in turn, and prints
    /// medians over the rounds. Sender and receiver call once for each message. Ctrl-C ends the run
    /// and keeps what was measured.
    Stream(pair::Stream),
    /// What it costs to move connections between two processes to shared memory, and to have them there
    ///
    /// Starts a monitor of its own and two processes with a channel each, anew for every figure and round. Prints the
    /// CPU time of a promotion, how much other traffic notices, what idle promoted connections cost a busy one, and
    /// memory, beside what is asked of each. Ctrl-C ends the run and keeps what was measured.
    Promotion(promotion::Promotion),
    /// Programs that people run, plain and under `megapipe run`: Redis, memcached, nginx, HAProxy, PostgreSQL
    ///
    /// Starts a monitor and, for each measurement anew, the server, both in a private folder that is removed; measures
    /// each combination of --placements, --apps, --operations and --connections over TCP, over Megapipe, and over the
    /// server's UNIX socket where it has one, in turn, and prints medians over the rounds beside what is asked. Programs
    /// that are not installed are named and left out. Fails if nothing was promoted where it should be. Ctrl-C ends the
    /// run and keeps what was measured.
    Apps(apps::Apps),
    /// Many sockets with a small message each: recvmsg, recvmmsg, recvmmmsg and a receiver with registered sockets
    ///
    /// The workload of the recvmmmsg proposal (netdev 0x13, 2019). Load and server take turns, each on a CPU of its own,
    /// so that exactly --ready sockets have a message whenever the server looks. Prints system calls and server time per
    /// message and how long messages wait, beside the proposal's own figures. Ctrl-C ends the run and keeps what was
    /// measured.
    Mmsg(mmsg::Mmsg),
    /// One server of a benchmark; ends when standard input closes
    #[command(hide = true)]
    Peer(Peer),
    /// The server of the floor measurement; obeys standard input
    #[command(hide = true)]
    Floor(Floor),
    /// One of two processes that exchange messages; ends when standard input closes
    #[command(hide = true)]
    Side(pair::Side),
    /// One of two processes whose connections are promoted; obeys standard input
    #[command(hide = true)]
    PromotionSide(promotion::Side),
    /// Asks a server of another program
    #[command(hide = true)]
    AppLoad(apps::Load),
    /// Times calls on descriptors that are no sockets
    #[command(hide = true)]
    AppCalls,
    /// The server of `mmsg`; takes turns with its controller
    #[command(hide = true)]
    MmsgServer(mmsg::Server),
    /// Uses a CPU; ends when standard input closes
    #[command(hide = true)]
    Busy(pair::Busy),
}

#[derive(Args)]
struct Rpc {
    /// Servers to compare [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = engine_parser())]
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
    client: Option<client::Engine>,
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

/// How much is measured, in every scenario.
#[derive(Args)]
struct Extent {
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Measurements of everything that is compared, in turn
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = whole(1..=1_000_000))]
    rounds: u32,
}

#[derive(Args)]
struct Peer {
    #[arg(long, value_parser = engine_parser())]
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

#[derive(Args)]
struct Floor {
    #[arg(long)]
    cpu: usize,
    #[arg(long)]
    size: usize,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let ended = match arguments.scenario {
        Scenario::Rpc(arguments) => rpc(arguments),
        Scenario::Pingpong(arguments) => arguments.run(),
        Scenario::Stream(arguments) => arguments.run(),
        Scenario::Promotion(arguments) => arguments.run(),
        Scenario::Apps(arguments) => arguments.run(),
        Scenario::Mmsg(arguments) => arguments.run(),
        Scenario::MmsgServer(arguments) => return arguments.run(),
        Scenario::AppLoad(arguments) => return arguments.run(),
        Scenario::AppCalls => return apps::calls(),
        Scenario::PromotionSide(arguments) => return arguments.run(),
        Scenario::Side(arguments) => return arguments.run(),
        Scenario::Busy(arguments) => return arguments.run(),
        Scenario::Peer(arguments) => return serve(arguments),
        Scenario::Floor(arguments) => {
            floor::serve(arguments.cpu, arguments.size).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    ended.unwrap_or_else(|error| {
        eprintln!("megapipe bench: {}", with_causes(error.as_ref()));
        ExitCode::FAILURE
    })
}

fn rpc(arguments: Rpc) -> Result<ExitCode, Box<dyn Error>> {
    let allowed = CpuSet::allowed()?;
    let plan = match plan(&arguments, &allowed) {
        Ok(plan) => plan,
        Err(unusable) => {
            eprintln!("megapipe bench: {unusable}");
            return Ok(ExitCode::from(2));
        }
    };
    if let Some(file) = &arguments.plot {
        plot::check(file)?;
    }
    let mut json = arguments.json.clone().map(JsonLines::create).transpose()?;
    let stop = stop_on_signal()?;
    let bar = progress_bar(plan.measurements());
    let mut records = Vec::new();
    let ended = rpc::run(&plan, &stop, &mut |progress| {
        match progress {
            Progress::Measuring(engine, point) => bar.set_message(format!(
                "{}, {} per connection, {} B",
                engine.name(),
                point.transactions,
                point.size
            )),
            Progress::Done => bar.inc(1),
            Progress::Record(record) => {
                records.push(record.clone());
                if let Some(json) = &mut json {
                    json.write(record)?;
                }
            }
        }
        Ok(())
    });
    bar.finish_and_clear();
    let printed = print(&table::render(&records));
    let outcome = ended?;
    printed?;
    let measured = records.iter().filter(|record| matches!(record, Record::Measurement(_))).count();
    if let Some(file) = &arguments.plot
        && measured > 0
    {
        plot::draw(&records, file)?;
    }
    if outcome == Outcome::Stopped {
        eprintln!("stopped: {measured} of {} measurements kept", plan.measurements());
        return Ok(ExitCode::from(INTERRUPTED));
    }
    match measured {
        0 => Ok(ExitCode::FAILURE), // the table has said why each engine is absent
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn serve(arguments: Peer) -> ExitCode {
    let Err(error) = peer::serve(&peer::Options {
        engine: arguments.engine,
        listen: arguments.listen,
        size: arguments.size,
        connections: arguments.connections,
        cpus: arguments.cpus,
    });
    eprintln!("{}", with_causes(&error)); // the controller says whose words these are
    ExitCode::FAILURE
}

fn json_file(name: &str) -> Result<PathBuf, &'static str> {
    match name {
        "-" => Err("standard output has the table; name a file (./- is a file too)"),
        _ => Ok(PathBuf::from(name)),
    }
}

fn svg_file(name: &str) -> Result<PathBuf, &'static str> {
    match PathBuf::from(name) {
        file if file.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("svg")) => Ok(file),
        _ => Err("the plot is written as SVG; name a file that ends in .svg"),
    }
}

/// Prints to standard output, whose reader may have gone (`| head`): that is no error.
fn print(text: &str) -> Result<(), PrintError> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(PrintError(error)),
        _ => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot print the table to standard output; records are safe with --json FILE")]
struct PrintError(#[source] io::Error);

/// A flag that is well-formed, yet cannot be used on this machine or beside the others.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{flag}: CPU {cpu} is not among those this process may use ({allowed})")]
    Cpu { flag: &'static str, cpu: usize, allowed: CpuSet },
    #[error("--cpus: {given} are {} CPUs; give two, or one for both processes", given.len())]
    TooManyCpus { given: CpuSet },
    #[error("--cpus: {given} are {} CPUs; server and load take turns on two different ones", given.len())]
    NotTwoCpus { given: CpuSet },
    #[error("--ready: {ready} sockets cannot be ready, there are {sockets}; give more --sockets")]
    MoreReadyThanSockets { ready: u32, sockets: u32 },
    #[error(
        "--rate: {rate} promotions per second are more than 10000 in {} s; give a lower --rate, or fewer --seconds",
        seconds.as_secs_f64()
    )]
    TooManyPromotions { rate: u32, seconds: Duration },
    #[error(
        "--rate half is half of what an epoll server does: add epoll-reuseport to --engines, or give a number"
    )]
    NoBaseline,
    #[error(
        "--rate: {rate} requests per second are fewer than {FEWEST_REQUESTS} in {} s; give a higher --rate, or more \
         --seconds",
        seconds.as_secs_f64()
    )]
    FewRequests { rate: u64, seconds: Duration },
}

fn plan(arguments: &Rpc, allowed: &CpuSet) -> Result<Plan, Unusable> {
    let server_cpus = match arguments.server_cpus.as_slice() {
        [] => vec![allowed.first()],
        sets => sets.to_vec(),
    };
    let client_cpus = arguments.client_cpus.clone().unwrap_or_else(|| allowed.last());
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
    let connections = arguments.connections.iter().map(|&count| count as usize).collect::<Vec<_>>();
    let most = connections.iter().copied().max().unwrap_or(1);
    let client = arguments.client.unwrap_or_else(|| client::Engine::best(most));
    let engines = match arguments.engines.as_slice() {
        [] => Engine::ALL.to_vec(),
        named => named.to_vec(),
    };
    let plan = Plan {
        program: PathBuf::from("/proc/self/exe"),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        engines,
        transactions: arguments.transactions.clone(),
        sizes: arguments.sizes.iter().map(|&size| size as usize).collect(),
        connections,
        server_cpus,
        client,
        client_cpus,
        window: arguments.extent.seconds,
        rounds: arguments.extent.rounds,
        rate: arguments.rate,
    };
    match plan.rate {
        Some(Rate::Half) if plan.baselines().next().is_none() => Err(Unusable::NoBaseline),
        Some(Rate::PerSecond(rate)) if rate as f64 * plan.window.as_secs_f64() < FEWEST_REQUESTS => {
            Err(Unusable::FewRequests { rate, seconds: plan.window })
        }
        _ => Ok(plan),
    }
}

fn check_cpus(flag: &'static str, set: &CpuSet, allowed: &CpuSet) -> Result<(), Unusable> {
    match set.missing_from(allowed).first() {
        None => Ok(()),
        Some(&cpu) => Err(Unusable::Cpu { flag, cpu, allowed: allowed.clone() }),
    }
}

/// Records in a file, each written through at once so that none is lost.
struct JsonLines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl JsonLines {
    fn create(path: PathBuf) -> Result<Self, JsonError> {
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file: BufWriter::new(file) }),
            Err(source) => Err(JsonError { path, source }),
        }
    }

    fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        let written = serde_json::to_writer(&mut self.file, record)
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .and_then(|()| self.file.flush());
        written.map_err(|source| io::Error::other(JsonError { path: self.path.clone(), source }))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("--json: cannot write {}; name a file on a disk with room, in a folder that exists", path.display())]
struct JsonError {
    path: PathBuf,
    source: io::Error,
}

/// Set by the first SIGINT or SIGTERM; a second one ends the process at once.
fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let second = stop.clone();
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), second)?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

fn progress_bar(count: usize) -> ProgressBar {
    let bar = ProgressBar::new(count as u64);
    let style = "{bar:30} {pos}/{len} {elapsed}/{duration} {msg}";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is well-formed"));
    bar
}

fn engine_parser() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.iter().map(|engine| engine.name()))
        .map(|name| Engine::from_name(&name).expect("the parser admits engine names only"))
}

fn client_parser() -> impl TypedValueParser<Value = client::Engine> {
    PossibleValuesParser::new(["io-uring", "epoll"]).map(|name| match name.as_str() {
        "epoll" => client::Engine::Epoll,
        _ => client::Engine::IoUring,
    })
}

/// A whole number within bounds.
fn whole(bounds: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if bounds.contains(&number) => Ok(number),
        _ => Err(format!("give a whole number from {} to {}", bounds.start(), bounds.end())),
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    match (text, text.parse()) {
        ("half", _) => Ok(Rate::Half),
        (_, Ok(number @ 1..=10_000_000)) => Ok(Rate::PerSecond(number)),
        _ => Err("give a whole number of requests per second from 1 to 10000000, or half".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.05 to 3600".to_owned()),
    }
}

/// The exit status of a run ended by Ctrl-C: 128 and the number of SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;

/// Fewer requests in a measurement have no 99th percentile worth the name.
const FEWEST_REQUESTS: f64 = 100.0;
