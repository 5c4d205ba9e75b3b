//! User-level TCP on a TUN device beside the kernel's on a veth pair, with clients of the kernel's.
//!
//! Server and client have a CPU each, and each row is measured with every server in turn. A [`Side::Floor`] without
//! state shows what the device costs before any TCP. Of the kernel's receive path the sender pays, on both links: so
//! what counts is the CPU time of both processes.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sys::file::raise_open_files;

use crate::Reason;
use crate::child::Child;
use crate::clock;
use crate::cpu::{self, CpuSet};
use crate::load::{self, Connections, Load, Options, Request};
use crate::names::names;
use crate::network::{self, Namespace};
use crate::options::{check_pair, cpu_ends, seconds, this_program};
use crate::part::Part;
use crate::record::Record;
use crate::run::{self, Run, RunError, Scenario, in_turn};

mod channel;
mod floor;
#[cfg(feature = "peers")]
mod foreign;
mod server;

pub use server::Task;

use channel::Counts;

/// Bytes of a request and of its answer.
const SIZE: usize = 64;

/// Bytes of one call in bulk.
const BULK: usize = 256 << 10;

/// Where servers listen.
const PORT: u16 = 7;

names! {
    /// A server.
    Side {
        /// A responder without state on a TUN device.
        Floor = "floor",
        /// A channel with a stack on a TUN device.
        Stack = "stack",
        /// Two of these on two CPUs, on one device.
        TwoStacks = "two-stacks",
        /// epoll by hand on the kernel's TCP, over veth.
        Kernel = "kernel",
        /// smoltcp on a TUN device.
        Smoltcp = "smoltcp",
    }
}

impl Side {
    /// All that this program was built with.
    fn built() -> Vec<Side> {
        Self::ALL.iter().copied().filter(|&side| cfg!(feature = "peers") || side != Side::Smoltcp).collect()
    }
}

/// What a server does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Service {
    /// Answers each message with one of the same length.
    Echo,
    /// Reads and drops.
    Sink,
    /// Writes as fast as the peer reads.
    Source,
}

names! {
    /// A load.
    Row {
        /// Connections for one request each.
        Short = "short",
        /// 300 connections, 64 of them active.
        Echo = "echo",
        /// One connection: the server sleeps between requests.
        Asleep = "asleep",
        /// One connection to the server.
        BulkIn = "bulk-in",
        /// One connection from the server.
        BulkOut = "bulk-out",
        /// As `asleep`, beside smoltcp.
        One = "one",
        /// 100 connections, 64 of them active, beside smoltcp.
        Hundred = "hundred",
        /// 1,000 connections, 64 of them active, beside smoltcp.
        Thousand = "thousand",
        /// As `short`, with clients on both CPUs.
        TwoShort = "two-short",
        /// As `echo`, with clients on both CPUs.
        TwoEcho = "two-echo",
    }
}

/// What there is to say of a row.
struct Facts {
    /// The servers that it compares.
    sides: &'static [Side],
    service: Service,
    /// Connections of the load, and those of them with a request under way.
    connections: usize,
    active: usize,
    /// Whether clients are on both CPUs.
    has_two_clients: bool,
}

impl Row {
    fn facts(self) -> Facts {
        const VETH: &[Side] = &[Side::Floor, Side::Stack, Side::Kernel];
        const PEER: &[Side] = &[Side::Floor, Side::Stack, Side::Smoltcp];
        const TWO: &[Side] = &[Side::Stack, Side::TwoStacks];
        let (sides, service, connections, active) = match self {
            Row::Short => (VETH, Service::Echo, ACTIVE, ACTIVE),
            Row::Echo => (VETH, Service::Echo, 300, ACTIVE),
            Row::Asleep => (VETH, Service::Echo, 1, 1),
            Row::BulkIn => (&VETH[1..], Service::Sink, 1, 1),
            Row::BulkOut => (&VETH[1..], Service::Source, 1, 1),
            Row::One => (PEER, Service::Echo, 1, 1),
            Row::Hundred => (PEER, Service::Echo, 100, ACTIVE),
            Row::Thousand => (PEER, Service::Echo, 1000, ACTIVE),
            Row::TwoShort => (TWO, Service::Echo, ACTIVE, ACTIVE),
            Row::TwoEcho => (TWO, Service::Echo, 300, ACTIVE),
        };
        let has_two_clients = matches!(self, Row::TwoShort | Row::TwoEcho);
        Facts { sides, service, connections, active, has_two_clients }
    }

    /// Whether its units are MiB.
    fn is_bulk(self) -> bool {
        self.facts().service != Service::Echo
    }

    fn is_short(self) -> bool {
        matches!(self, Row::Short | Row::TwoShort)
    }

    fn load(self, target: SocketAddrV4) -> Options {
        let Facts { service, connections, active, .. } = self.facts();
        Options {
            engine: load::Engine::Epoll,
            target: load::Target::Tcp(target.into()),
            request: match service {
                Service::Sink => Request::Upload(BULK),
                Service::Source => Request::Download(BULK),
                Service::Echo => Request::Echo(SIZE),
            },
            lifetime: if self.is_short() { Connections::Short } else { Connections::Kept },
            connections,
            active,
            rate: None,
            spin: false,
            // Latencies are not reported.
            warm_up: Duration::ZERO,
            window: Duration::ZERO,
            patience: None,
        }
    }
}

/// Requests that are under way.
const ACTIVE: usize = 64;

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Loads to measure
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Row::ALL.to_vec())]
    rows: Vec<Row>,
    /// Servers, of those that a load compares and that this program is built with
    #[arg(long = "servers", value_delimiter = ',', value_name = "NAMES", default_values_t = Side::built())]
    sides: Vec<Side>,
    /// The CPUs of the server and of the client, such as 0,1
    #[arg(long, value_name = "CPUS", default_value_t = cpu_ends())]
    cpus: CpuSet,
    /// Length of each measurement; a warm-up of a quarter goes before it
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    window: Duration,
}

impl Plan {
    fn sides_of(&self, row: Row) -> Vec<Side> {
        row.facts().sides.iter().copied().filter(|side| self.sides.contains(side)).collect()
    }

    /// CPUs of the server and of the client.
    fn cpus_of(&self, row: Row, side: Side) -> [CpuSet; 2] {
        let server = if side == Side::TwoStacks { self.cpus.clone() } else { self.cpus.first() };
        let client = if row.facts().has_two_clients { self.cpus.clone() } else { self.cpus.last() };
        [server, client]
    }
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        check_pair(&self.cpus, false)?;
        // Before there is a second thread, which could not follow.
        network::enter_own()?;
        Ok(self.rows.iter().map(|&row| self.sides_of(row).len()).sum::<usize>() * rounds as usize)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        // Before this thread has one CPU alone, which would pass for the machine's number.
        run.header(json!({
            "scenario": "tcp",
            "cpus": self.cpus.as_slice(),
            "congestion_control": congestion_control(),
            "seconds": self.window.as_secs_f64(),
        }))?;
        raise_open_files(u64::MAX)
            .and_then(|_| cpu::pin(self.cpus.last().as_slice()))
            .map_err(RunError::lacks("cannot prepare this process for the load"))?;
        let mut networks = (0..250).cycle();
        for round in 1..=run.rounds {
            for &row in &self.rows {
                for side in in_turn(&self.sides_of(row), round) {
                    let network = networks.next().unwrap_or_default();
                    let turn = Turn { plan: self, stop: run.stop, row, side, network };
                    run.measure(
                        round,
                        format!("{row}, {side}"),
                        json!({ "row": row, "side": side }),
                        || turn.measure(),
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// One server under one load, in one round.
struct Turn<'run> {
    plan: &'run Plan,
    stop: &'run AtomicBool,
    row: Row,
    side: Side,
    network: u8,
}

impl Turn<'_> {
    /// Of the client, and of the server: in another network than those of the last turns, whose devices may still
    /// be on their way out.
    fn addresses(&self) -> [SocketAddrV4; 2] {
        [1, 2].map(|host| SocketAddrV4::new(Ipv4Addr::new(10, 78, self.network, host), PORT))
    }

    fn measure(&self) -> Result<Record, Reason> {
        let [server_cpus, client_cpus] = self.plan.cpus_of(self.row, self.side);
        let mut server = start(self, &server_cpus)?;
        let target = self.addresses()[1];
        let load = Load::start(&self.row.load(target), &client_cpus)?;
        let ended = self.observe(&mut server, &load);
        let failures = load.stop()?.failures;
        let (begin, end) = ended?;
        let units = (end.done - begin.done) as f64 / if self.row.is_bulk() { MIB } else { 1.0 };
        if units == 0.0 {
            return Err(server.complaint("it answered nothing").into());
        }
        let ns = |time: Duration| time.as_nanos() as f64 / units;
        let elapsed = end.at - begin.at;
        let busy = |cpus: &CpuSet| {
            let of_one = |&cpu: &usize| elapsed.saturating_sub(end.idle[cpu].saturating_sub(begin.idle[cpu]));
            ns(cpus.as_slice().iter().map(of_one).sum())
        };
        let counted = |count: fn(&Counts) -> u64| {
            let all = |counts: &[Counts]| counts.iter().map(count).sum::<u64>() as f64;
            Some(all(end.counts.as_ref()?) - all(begin.counts.as_ref()?))
        };
        let fields = json!({
            "row": self.row,
            "side": self.side,
            "rate": units / elapsed.as_secs_f64(),
            "server_cpu_ns": ns(end.server_cpu - begin.server_cpu),
            "client_cpu_ns": ns(end.client_cpu - begin.client_cpu),
            "server_busy_ns": busy(&server_cpus),
            "both_busy_ns": busy(&self.plan.cpus),
            "packets_per_wait": counted(|counts| counts.received)
                .zip(counted(|counts| counts.turns))
                .map(|(packets, waits)| packets / waits.max(1.0)),
            "calls": counted(|counts| counts.calls).map(|calls| calls / units),
            "failures": failures,
        });
        Ok(Record::new("measurement", fields))
    }

    /// Lets the load run for the window, after a quarter of it; all that once the first answer is there: a new
    /// link may lose the first SYN, which is repeated after a second.
    fn observe(&self, server: &mut Child, load: &Load) -> Result<(Sample, Sample), Reason> {
        let end = Instant::now() + PATIENCE;
        while load.sample()?.transactions == 0 && !load.is_broken() && Instant::now() < end {
            self.pause(Duration::from_millis(10))?;
        }
        self.pause(self.plan.window / 4)?;
        let begin = Sample::take(self.side, server, load)?;
        self.pause(self.plan.window)?;
        Ok((begin, Sample::take(self.side, server, load)?))
    }

    fn pause(&self, time: Duration) -> Result<(), RunError> {
        run::pause(Instant::now() + time, self.stop)
    }
}

/// What both processes have done and used so far.
struct Sample {
    at: Instant,
    done: u64,
    server_cpu: Duration,
    client_cpu: Duration,
    /// By number of the CPU.
    idle: Vec<Duration>,
    counts: Option<Vec<Counts>>,
}

impl Sample {
    fn take(side: Side, server: &mut Child, load: &Load) -> Result<Self, Reason> {
        let counts = matches!(side, Side::Stack | Side::TwoStacks).then(|| counts(server)).transpose()?;
        let load = load.sample()?;
        Ok(Self {
            at: load.at,
            done: load.transactions,
            server_cpu: clock::of_process(server.pid())?,
            client_cpu: load.cpu,
            idle: cpu::idle_times()?,
            counts,
        })
    }
}

/// Starts the server of a turn, and waits until it serves.
fn start(turn: &Turn<'_>, cpus: &CpuSet) -> Result<Child, Reason> {
    let ([client, server], device) = (turn.addresses(), format!("mpt{}", turn.network));
    let Facts { service, connections, .. } = turn.row.facts();
    let many = turn.row.is_short() || turn.row.is_bulk();
    let task = Task {
        side: turn.side,
        service,
        connections: if many { 1024 } else { connections },
        address: server,
        tun: format!("tun:{device},{}/24", server.ip()),
        cpus: cpus.clone(),
    };
    let mut command = task.command(&this_program());
    if turn.side == Side::Kernel {
        Namespace::joined(&device, *client.ip(), *server.ip())?.enter(&mut command);
    }
    Ok(Child::listening(&mut command)?.0)
}

/// How the kernel's TCP controls congestion here.
fn congestion_control() -> String {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.map_or("unknown".to_owned(), |name| name.trim().to_owned())
}

fn counts(server: &mut Child) -> io::Result<Vec<Counts>> {
    server.ask("")?;
    Ok(serde_json::from_str(&server.line()?)?)
}

const MIB: f64 = (1 << 20) as f64;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
