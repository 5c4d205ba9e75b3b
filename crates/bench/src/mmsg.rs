//! The workload of the recvmmmsg proposal (netdev 0x13): many sockets, on some of which a small
//! message waits whenever the server looks.
//!
//! The server is a child process on a CPU of its own; the controller is the load. They take turns
//! through shared memory (`gate.rs`), without a system call: the load sends one message on each of
//! so many sockets, then the server looks and takes them, and its time from the look to the last
//! message is what is measured. Nothing of the load runs meanwhile, nothing sleeps, and how many
//! sockets are ready is exact.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use crate::child::{self, Child};
use crate::cpu::{self, CpuSet};
use crate::names::names;
use crate::part::Part;
use crate::progress::{Listener, Outcome, Progress};
use crate::record::Record;

mod gate;
mod server;

pub use server::{ServerError, Task, serve};

use gate::Gate;
use server::Report;

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
#[derive(Debug, Clone)]
pub struct Plan {
    /// This program, which is run again as the server.
    pub program: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Which calls.
    pub calls: Vec<Call>,
    /// Which traffic.
    pub traffic: Vec<Traffic>,
    /// Sockets of the server.
    pub sockets: usize,
    /// Messages on each of them.
    pub messages: u64,
    /// How many sockets are ready at a time; no more than there are.
    pub ready: Vec<usize>,
    /// Bytes of a message.
    pub size: usize,
    /// Between two messages of a socket, at least.
    pub gap: Duration,
    /// The CPUs of the server and of the load: two different ones.
    pub cpus: CpuSet,
    /// Measurements of everything.
    pub rounds: u32,
}

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The load cannot have its CPU or its descriptors.
    #[error("cannot prepare this process for the load")]
    Prepare(#[source] io::Error),
    /// The caller cannot take a record.
    #[error(transparent)]
    Report(io::Error),
}

impl Plan {
    /// How many measurements a complete run makes.
    pub fn measurements(&self) -> usize {
        self.calls.len() * self.traffic.len() * self.ready.len() * self.rounds as usize
    }
}

/// Runs the plan until it is complete or `stop` is set.
pub fn run(plan: &Plan, stop: &AtomicBool, report: &mut Listener<'_>) -> Result<Outcome, RunError> {
    let mut tell = |progress: Progress<'_>| report(progress).map_err(RunError::Report);
    child::raise_descriptor_limit().map_err(RunError::Prepare)?;
    // Before the load has one CPU alone, which would pass for the machine's number.
    tell(Progress::Record(&header(plan)))?;
    cpu::pin(plan.cpus.last().as_slice()).map_err(RunError::Prepare)?;
    let mut absent = Vec::new();
    for round in 1..=plan.rounds {
        for &traffic in &plan.traffic {
            for &ready in &plan.ready {
                // Each round begins with another call, so that none has the best place always.
                let first = round as usize % plan.calls.len();
                for &call in plan.calls.iter().cycle().skip(first).take(plan.calls.len()) {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(Outcome::Stopped);
                    }
                    let what = format!("{}, {}, {ready} ready", call.name(), traffic.name());
                    tell(Progress::Measuring(what))?;
                    let is_absent = absent.contains(&(call, traffic));
                    if !is_absent {
                        match measure(plan, call, traffic, ready, round, stop) {
                            Ok(Some(measured)) => tell(Progress::Record(&measured))?,
                            Ok(None) => return Ok(Outcome::Stopped),
                            Err(reason) => {
                                absent.push((call, traffic));
                                let place = json!({ "call": call, "traffic": traffic });
                                tell(Progress::Record(&Record::absent(place, &reason)))?;
                            }
                        }
                    }
                    tell(Progress::Done)?;
                }
            }
        }
    }
    Ok(Outcome::Complete)
}

/// One measurement; none when `stop` was set, and why there is none where it cannot be made.
fn measure(
    plan: &Plan,
    call: Call,
    traffic: Traffic,
    ready: usize,
    round: u32,
    stop: &AtomicBool,
) -> Result<Option<Record>, String> {
    if call == Call::Stateful && traffic == Traffic::UdpSend {
        return Err("a receiver does not send".to_owned());
    }
    let turns = (plan.sockets as u64 * plan.messages).div_ceil(ready as u64);
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    sink.set_nonblocking(true).map_err(|error| error.to_string())?;
    let gate = Gate::new().map_err(|error| error.to_string())?;
    let task = Task {
        call,
        traffic,
        sockets: plan.sockets,
        ready,
        turns,
        size: plan.size,
        cpus: plan.cpus.first(),
        gate: gate.descriptor(),
        sink: (traffic == Traffic::UdpSend)
            .then(|| sink.local_addr())
            .transpose()
            .map_err(|error| error.to_string())?,
    };
    let mut server = Server::start(plan, &task).map_err(|error| error.to_string())?;
    let driven = drive(plan, &task, &gate, &mut server, &sink, stop);
    match driven {
        Ok(Some(report)) => {
            let fields = json!({
                "call": call,
                "traffic": traffic,
                "sockets": plan.sockets,
                "ready": ready,
                "round": round,
                "packets": report.packets,
                "lost": report.lost,
                "receive_calls": report.calls,
                "wait_calls": report.waits,
                "cpu_ns_per_packet": report.ns_per_packet,
                "p50_us": report.p50_us,
                "p99_us": report.p99_us,
            });
            Ok(Some(Record::new("measurement", fields)))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(server.complaint().unwrap_or_else(|| error.to_string())),
    }
}

/// Sends burst after burst, as the server takes them.
fn drive(
    plan: &Plan,
    task: &Task,
    gate: &Gate,
    server: &mut Server,
    sink: &UdpSocket,
    stop: &AtomicBool,
) -> io::Result<Option<Report>> {
    let gone = || io::Error::other("the server has gone");
    let ports: Vec<u16> = server.line()?;
    let mut load = Load::new(task, &ports, plan.size)?;
    if !gate.wait_done(1) {
        return Err(gone());
    }
    let pause = plan.gap.mul_f64(task.ready as f64 / plan.sockets as f64);
    let mut due = Instant::now();
    for turn in 0..task.turns {
        if turn.is_multiple_of(STOP_TURNS) && stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        // Late is late: a socket's messages never come closer than asked.
        due = Instant::now() + pause;
        load.send(task.ready)?;
        gate.sent(turn + 1);
        if !gate.wait_done(turn + 2) {
            return Err(gone());
        }
        if task.traffic == Traffic::UdpSend {
            let mut room = [0; 2048];
            while sink.recv(&mut room).is_ok() {}
        }
    }
    server.line().map(Some)
}

/// The sender of messages.
enum Load {
    Udp {
        socket: UdpSocket,
        headers: Vec<libc::mmsghdr>,
        to: Vec<socket2::SockAddr>,
        at: usize,
        _message: Box<(Vec<u8>, libc::iovec)>,
    },
    Tcp {
        connections: Vec<TcpStream>,
        message: Vec<u8>,
        at: usize,
    },
    /// The server sends.
    None,
}

impl Load {
    fn new(task: &Task, ports: &[u16], size: usize) -> io::Result<Self> {
        let short = || io::Error::other("the server did not tell its ports");
        Ok(match task.traffic {
            Traffic::UdpSend => Load::None,
            Traffic::Tcp => {
                let port = *ports.first().ok_or_else(short)?;
                let connect = |_| {
                    let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
                    connection.set_nodelay(true)?;
                    Ok(connection)
                };
                let connections: io::Result<Vec<TcpStream>> = (0..task.sockets).map(connect).collect();
                Load::Tcp { connections: connections?, message: vec![7; size], at: 0 }
            }
            Traffic::Udp => {
                let mut message =
                    Box::new((vec![7; size], libc::iovec { iov_base: std::ptr::null_mut(), iov_len: size }));
                message.1.iov_base = message.0.as_mut_ptr().cast();
                let to: Vec<_> = ports
                    .iter()
                    .map(|&port| socket2::SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
                    .collect();
                if to.len() != task.sockets {
                    return Err(short());
                }
                // SAFETY: zero is a value of a header.
                let headers = vec![unsafe { std::mem::zeroed() }; task.ready];
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                Load::Udp { socket, headers, to, at: 0, _message: message }
            }
        })
    }

    /// One message on each of the next so many sockets.
    fn send(&mut self, ready: usize) -> io::Result<()> {
        match self {
            Load::None => Ok(()),
            Load::Tcp { connections, message, at } => {
                let stride = stride(connections.len());
                for _ in 0..ready {
                    connections[*at].write_all(message)?;
                    *at = (*at + stride) % connections.len();
                }
                Ok(())
            }
            Load::Udp { socket, headers, to, at, _message } => {
                let stride = stride(to.len());
                for header in &mut *headers {
                    let header = &mut header.msg_hdr;
                    header.msg_name = to[*at].as_ptr().cast_mut().cast();
                    header.msg_namelen = to[*at].len();
                    (header.msg_iov, header.msg_iovlen) = (&raw mut _message.1, 1);
                    *at = (*at + stride) % to.len();
                }
                let mut sent = 0;
                while sent < headers.len() {
                    let rest = &mut headers[sent..];
                    // SAFETY: the headers point to addresses and a message that live in `self`.
                    let count = unsafe {
                        libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0)
                    };
                    if count < 0 {
                        return Err(io::Error::last_os_error());
                    }
                    sent += count as usize;
                }
                Ok(())
            }
        }
    }
}

/// How far apart the sockets of a burst are: not neighbours, and each comes before one comes again.
fn stride(sockets: usize) -> usize {
    if sockets.is_multiple_of(37) { 1 } else { 37 }
}

/// The server process.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(plan: &Plan, task: &Task) -> io::Result<Self> {
        let mut child = Child::start(&mut Part::MmsgServer(task.clone()).command(&plan.program))?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// The next line that it prints.
    fn line<T: for<'line> Deserialize<'line>>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|_| io::Error::other("the server has gone"))
    }

    /// What it has complained of, once it is ended.
    fn complaint(&mut self) -> Option<String> {
        // A server that complained has ended by itself; the other end is the controller's doing.
        let _ = self.child.kill();
        self.child.complaint()
    }
}

fn header(plan: &Plan) -> Record {
    let fields = json!({
        "scenario": "mmsg",
        "cpus": plan.cpus.as_slice(),
        "size": plan.size,
        "gap_us": plan.gap.as_secs_f64() * 1e6,
        "rounds": plan.rounds,
    });
    Record::header(&plan.command, fields)
}

/// Turns between looks at whether the run is to stop.
const STOP_TURNS: u64 = 1024;
