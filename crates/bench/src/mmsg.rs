//! The workload of the recvmmmsg proposal (netdev 0x13): many sockets, on some of which a small
//! message waits whenever the server looks.
//!
//! The server is a child process on a CPU of its own; the controller is the load. They take turns
//! through shared memory (`gate.rs`), without a system call: the load sends one message on each of
//! so many sockets, then the server looks and takes them, and its time from the look to the last
//! message is what is measured. Nothing of the load runs meanwhile, nothing sleeps, and how many
//! sockets are ready is exact.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use sys::file::raise_open_files;

use crate::Reason;
use crate::child::Child;
use crate::cpu::{self, CpuSet};
use crate::names::names;
use crate::options::{check_pair, cpu_ends, this_program, whole};
use crate::part::Part;
use crate::record::Record;
use crate::region;
use crate::run::{Run, RunError, Scenario, Unusable, in_turn};

mod aio;
mod gate;
mod lowat;
mod server;

pub use server::Task;

use gate::Gate;

names! {
    /// What the server calls.
    Call {
        /// epoll_wait(2), then recvmsg(2) once for each socket (or sendmsg(2)).
        Recvmsg = "recvmsg",
        /// The same with recvmmsg(2) (or sendmmsg(2)).
        Recvmmsg = "recvmmsg",
        /// epoll_wait(2), then one recvmmmsg (or one sendmmmsg).
        Recvmmmsg = "recvmmmsg",
        /// A receiver with registered sockets; no epoll.
        Stateful = "stateful",
        /// io_submit(2) with IOCB_CMD_POLL and IOCB_CMD_PREAD, io_getevents(2); no epoll.
        Aio = "aio",
        /// epoll_wait(2) and recv(2), behind a low-water mark of 16 messages with a timeout of 20 ms.
        Lowat = "lowat",
    }
}

names! {
    /// What goes over which sockets.
    Traffic {
        /// Datagrams to the server.
        Udp = "udp",
        /// Messages to the server on TCP connections.
        Tcp = "tcp",
        /// Datagrams from the server, the same one on every socket of a turn.
        UdpSend = "udp-send",
    }
}

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Calls to compare
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = Call::ALL.to_vec())]
    calls: Vec<Call>,
    /// What goes over the sockets: udp, tcp, udp-send (the server sends)
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_values_t = [Traffic::Udp])]
    traffic: Vec<Traffic>,
    /// Sockets of the server, up to 10000
    #[arg(long, value_name = "COUNT", default_value = "512", value_parser = whole(1..=10_000_usize))]
    sockets: usize,
    /// Messages on each socket; the proposal has 10000
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = whole(1..=1_000_000_u64))]
    messages: u64,
    /// Sockets that have a message whenever the server looks, up to --sockets
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", default_value = "1,2,4,8,16,30,128")]
    #[arg(value_parser = whole(1..=10_000_usize))]
    ready: Vec<usize>,
    /// The CPUs of the server and of the load, such as 0,1
    #[arg(long, value_name = "CPUS", default_value_t = cpu_ends())]
    cpus: CpuSet,
}

impl Scenario for Plan {
    fn prepare(&mut self, rounds: u32) -> Result<usize, Reason> {
        // They take turns by spinning, which two on one CPU cannot.
        check_pair(&self.cpus, false)?;
        let sockets = self.sockets;
        if let Some(&ready) = self.ready.iter().find(|&&ready| ready > sockets) {
            let words =
                format!("--ready: {ready} sockets cannot be ready, there are {sockets}; give more --sockets");
            return Err(Unusable(words).into());
        }
        Ok(self.calls.len() * self.traffic.len() * self.ready.len() * rounds as usize)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<(), RunError> {
        // Before the load has one CPU alone, which would pass for the machine's number.
        run.header(json!({
            "scenario": "mmsg",
            "cpus": self.cpus.as_slice(),
            "size": SIZE,
            "gap_us": GAP.as_secs_f64() * 1e6,
        }))?;
        raise_open_files(u64::MAX)
            .and_then(|_| cpu::pin(self.cpus.last().as_slice()))
            .map_err(RunError::lacks("cannot prepare this process for the load"))?;
        for round in 1..=run.rounds {
            for &traffic in &self.traffic {
                for &ready in &self.ready {
                    for call in in_turn(&self.calls, round) {
                        let what = format!("{call}, {traffic}, {ready} ready");
                        let stop = run.stop;
                        run.measure(round, what, json!({ "call": call, "traffic": traffic }), || {
                            measure(self, call, traffic, ready, stop)
                        })?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn measure(
    plan: &Plan,
    call: Call,
    traffic: Traffic,
    ready: usize,
    stop: &AtomicBool,
) -> Result<Record, Reason> {
    match (call, traffic) {
        (Call::Stateful | Call::Aio, Traffic::UdpSend) => return Err("a receiver does not send".into()),
        (Call::Lowat, Traffic::Udp | Traffic::UdpSend) => return Err("the mark is for streams".into()),
        _ => {}
    }
    let turns = (plan.sockets as u64 * plan.messages).div_ceil(ready as u64);
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sink.set_nonblocking(true)?;
    let memory = region::create(gate::BYTES)?;
    let gate = Gate::of(&memory)?;
    let task = Task {
        call,
        traffic,
        sockets: plan.sockets,
        ready,
        turns,
        cpus: plan.cpus.first(),
        gate: memory.as_raw_fd(),
        sink: (traffic == Traffic::UdpSend).then(|| sink.local_addr()).transpose()?,
    };
    let mut server = Child::start(&mut task.command(&this_program()))?;
    let report = drive(plan, &task, &gate, &mut server, &sink, stop).map_err(|error| match error {
        error if error.is::<RunError>() => error,
        error => server.complaint(&error.to_string()).into(),
    })?;
    let place = json!({ "call": call, "traffic": traffic, "sockets": plan.sockets, "ready": ready });
    Ok(Record::new("measurement", place).with(report))
}

/// Sends burst after burst, as the server takes them.
fn drive(
    plan: &Plan,
    task: &Task,
    gate: &Gate,
    server: &mut Child,
    sink: &UdpSocket,
    stop: &AtomicBool,
) -> Result<Value, Reason> {
    let gone = "the server has gone";
    let ports: Vec<u16> = serde_json::from_str(&server.line()?)?;
    let mut load = Load::new(task, &ports)?;
    gate.wait_done(1).ok_or(gone)?;
    let pause = GAP.mul_f64(task.ready as f64 / plan.sockets as f64);
    let mut due = Instant::now();
    for turn in 0..task.turns {
        if turn.is_multiple_of(STOP_TURNS) && stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped.into());
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        // Late is late: a socket's messages never come closer than asked.
        due = Instant::now() + pause;
        load.send(task.ready)?;
        gate.sent(turn + 1);
        gate.wait_done(turn + 2).ok_or(gone)?;
        if task.traffic == Traffic::UdpSend {
            let mut room = [0; 2048];
            while sink.recv(&mut room).is_ok() {}
        }
    }
    Ok(serde_json::from_str(&server.line()?)?)
}

/// The sender of messages.
struct Load {
    socket: UdpSocket,
    /// The server's sockets, if it does not send.
    ports: Vec<SocketAddr>,
    connections: Vec<TcpStream>,
    at: usize,
}

impl Load {
    fn new(task: &Task, ports: &[u16]) -> io::Result<Self> {
        let mut ports: Vec<SocketAddr> =
            ports.iter().map(|&port| (Ipv4Addr::LOCALHOST, port).into()).collect();
        let mut connections = Vec::new();
        match task.traffic {
            Traffic::Udp => {}
            Traffic::UdpSend => ports.clear(),
            Traffic::Tcp => {
                for _ in 0..task.sockets {
                    let connection = TcpStream::connect(&ports[..])?;
                    connection.set_nodelay(true)?;
                    connections.push(connection);
                }
                ports.clear();
            }
        }
        Ok(Self { socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, ports, connections, at: 0 })
    }

    /// One message on each of the next so many sockets.
    fn send(&mut self, ready: usize) -> io::Result<()> {
        let sockets = self.ports.len().max(self.connections.len());
        for _ in 0..if sockets > 0 { ready } else { 0 } {
            match self.connections.get_mut(self.at) {
                Some(connection) => connection.write_all(&MESSAGE)?,
                None => drop(self.socket.send_to(&MESSAGE, self.ports[self.at])?),
            }
            self.at = (self.at + stride(sockets)) % sockets;
        }
        Ok(())
    }
}

/// How far apart the sockets of a burst are: not neighbours, and each comes before one comes again.
fn stride(sockets: usize) -> usize {
    if sockets.is_multiple_of(37) { 1 } else { 37 }
}

/// Bytes of a message.
const SIZE: usize = 64;
const MESSAGE: [u8; SIZE] = [7; SIZE];

/// Between two messages of a socket, at least.
const GAP: Duration = Duration::from_millis(1);

/// Turns between looks at whether the run is to stop.
const STOP_TURNS: u64 = 1024;
