//! The server of the workload: it looks for messages and takes them, by one of the calls.

use crate::Reason;
use crate::part::Part;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use mmsg::receiver::{Event, Options};
use mmsg::{Caller, Mmep, Receiver};
use serde::{Deserialize, Serialize};
use sys::clock::monotonic;

use super::gate::Gate;
use super::{Call, SIZE, Traffic};
use crate::cpu::{self, CpuSet};
use crate::epoll::Epoll;
use crate::region;

/// What a server is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// By which call.
    pub call: Call,
    /// What goes over which sockets.
    pub traffic: Traffic,
    /// Sockets in all.
    pub sockets: usize,
    /// Messages of a turn, on as many sockets.
    pub ready: usize,
    /// Turns in all.
    pub turns: u64,
    /// Where it runs.
    pub cpus: CpuSet,
    /// The descriptor of the memory by which server and load take turns.
    pub gate: RawFd,
    /// Where messages go that are sent.
    pub sink: Option<SocketAddr>,
}

/// What a server reports at its end, as the record has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) packets: u64,
    pub(super) lost: u64,
    pub(super) receive_calls: u64,
    pub(super) wait_calls: u64,
    pub(super) cpu_ns_per_packet: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Part for Task {
    const NAME: &'static str = "mmsg-server";

    fn run(self) -> Result<(), Reason> {
        Ok(serve(&self)?)
    }
}

/// Runs a server to its end: tells its ports, takes its turns, tells what they cost.
fn serve(task: &Task) -> io::Result<()> {
    cpu::pin(task.cpus.as_slice())?;
    crate::child::raise_descriptor_limit()?;
    let gate = Gate::of(region::inherited(task.gate))?;
    let sockets = open(task)?;
    let mut way = Way::new(task, sockets)?;
    let mut course = Course::new(task);
    gate.done(1);
    for turn in 0..task.turns {
        let Some(sent_at) = gate.wait_sent(turn + 1) else { break };
        course.begin(sent_at, turn);
        way.turn(&mut course)?;
        course.end();
        gate.done(turn + 2);
    }
    way.count(&mut course);
    tell(&course.report())
}

fn tell(value: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(value)?;
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()?;
    Ok(())
}

/// The server's sockets; their ports, or that of their listener, are told.
fn open(task: &Task) -> io::Result<Vec<OwnedFd>> {
    if task.traffic == Traffic::Tcp {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        tell(&[listener.local_addr()?.port()])?;
        let accept = |_| {
            let (socket, _) = listener.accept()?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        };
        return (0..task.sockets).map(accept).collect();
    }
    let sockets: io::Result<Vec<UdpSocket>> = (0..task.sockets)
        .map(|_| {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            if let Some(sink) = task.sink {
                socket.connect(sink)?;
            }
            Ok(socket)
        })
        .collect();
    let sockets = sockets?;
    let ports: io::Result<Vec<u16>> = sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect();
    tell(&ports?)?;
    Ok(sockets.into_iter().map(OwnedFd::from).collect())
}

/// Turns, and what they took.
struct Course {
    ready: usize,
    turns: Vec<u64>,
    delays: Vec<u64>,
    /// In some turns each message's time is taken, which costs some itself.
    times_messages: bool,
    began: u64,
    sent_at: u64,
    got: usize,
    calls: u64,
    waits: u64,
    packets: u64,
    lost: u64,
    /// What was read of the messages, so that they are read.
    sum: u64,
}

impl Course {
    fn new(task: &Task) -> Self {
        Self {
            ready: task.ready,
            turns: Vec::with_capacity(task.turns as usize),
            delays: Vec::new(),
            times_messages: false,
            began: 0,
            sent_at: 0,
            got: 0,
            calls: 0,
            waits: 0,
            packets: 0,
            lost: 0,
            sum: 0,
        }
    }

    fn begin(&mut self, sent_at: u64, turn: u64) {
        self.sent_at = sent_at;
        self.times_messages = turn.is_multiple_of(TIMED);
        self.got = 0;
        self.began = monotonic();
    }

    #[inline]
    fn take(&mut self, data: &[u8]) {
        self.sum = self.sum.wrapping_add(u64::from(*data.first().unwrap_or(&0)));
        self.got += 1;
        if self.times_messages {
            self.delays.push(monotonic().saturating_sub(self.sent_at));
        }
    }

    fn end(&mut self) {
        let took = monotonic() - self.began;
        if !self.times_messages {
            self.turns.push(took);
        }
        self.packets += self.got as u64;
        self.lost += (self.ready - self.got.min(self.ready)) as u64;
    }

    /// The median over parts of the run: the machine takes the CPU away now and then.
    fn report(mut self) -> Report {
        let part = (self.turns.len() / PARTS).max(1);
        let per_packet = |turns: &[u64]| turns.iter().sum::<u64>() as f64 / (turns.len() * self.ready) as f64;
        let mut parts: Vec<f64> = self.turns.chunks(part).map(per_packet).collect();
        parts.sort_by(f64::total_cmp);
        self.delays.sort_unstable();
        let delay = |share: f64| match self.delays.len() {
            0 => 0.0,
            count => self.delays[((count - 1) as f64 * share) as usize] as f64 / 1e3,
        };
        std::hint::black_box(self.sum);
        Report {
            packets: self.packets,
            lost: self.lost,
            receive_calls: self.calls,
            wait_calls: self.waits,
            cpu_ns_per_packet: parts.get(parts.len() / 2).copied().unwrap_or(0.0),
            p50_us: delay(0.5),
            p99_us: delay(0.99),
        }
    }
}

/// How a server does its turn.
enum Way {
    Plain(Sockets, Call),
    Together(Sockets, Box<Caller>, Vec<Mmep>),
    Stateful(Box<Receiver>),
    Send { sockets: Sockets, call: Call, caller: Box<Caller>, eps: Vec<Mmep>, at: usize, stride: usize },
}

impl Way {
    fn new(task: &Task, sockets: Vec<OwnedFd>) -> io::Result<Self> {
        let library = |error: &dyn std::error::Error| io::Error::other(crate::with_causes(error));
        if task.call == Call::Stateful {
            let options = Options { sockets: task.sockets as u32, ..Options::default() };
            let mut receiver = Receiver::new(&options).map_err(|error| library(&error))?;
            for (at, socket) in sockets.into_iter().enumerate() {
                receiver.add(socket, at as u64).map_err(|error| library(&error))?;
            }
            return Ok(Way::Stateful(Box::new(receiver)));
        }
        let messages = match task.call {
            Call::Recvmmsg => QUEUE,
            Call::Recvmmmsg => task.ready,
            _ => 1,
        };
        let sockets = Sockets::new(sockets, task.ready, messages, task.traffic)?;
        if task.traffic == Traffic::UdpSend {
            return Ok(Way::Send {
                sockets,
                call: task.call,
                caller: Box::new(Caller::new()),
                eps: Vec::new(),
                at: 0,
                stride: super::stride(task.sockets),
            });
        }
        Ok(match task.call {
            Call::Recvmmmsg => Way::Together(sockets, Box::new(Caller::new()), Vec::new()),
            call => Way::Plain(sockets, call),
        })
    }

    fn turn(&mut self, course: &mut Course) -> io::Result<()> {
        match self {
            Way::Plain(sockets, call) => {
                while course.got < course.ready {
                    let ready = sockets.wait(course)?;
                    if ready == 0 {
                        break;
                    }
                    for event in 0..ready {
                        let fd = sockets.events[event].u64 as RawFd;
                        sockets.receive(fd, *call, course)?;
                    }
                }
            }
            Way::Together(sockets, caller, eps) => {
                while course.got < course.ready {
                    let ready = sockets.wait(course)?;
                    if ready == 0 {
                        break;
                    }
                    eps.clear();
                    let events = sockets.events[..ready].iter().enumerate();
                    eps.extend(events.map(|(at, event)| Mmep {
                        sockfd: event.u64 as i32,
                        num: 1,
                        offset: at as i32,
                    }));
                    // SAFETY: the headers point into memory of `sockets`, which nobody else uses.
                    unsafe { caller.recvmmmsg(eps, &mut sockets.headers, sockets.flags) }
                        .map_err(io::Error::other)?;
                    for ep in &*eps {
                        if ep.num < 0 {
                            return Err(io::Error::from_raw_os_error(-ep.num));
                        }
                        course.take(sockets.data(ep.offset as usize));
                    }
                }
            }
            Way::Stateful(receiver) => {
                while course.got < course.ready {
                    let batch =
                        receiver.wait(course.ready - course.got, Some(PATIENCE)).map_err(io::Error::other)?;
                    if batch.is_empty() {
                        break;
                    }
                    for message in batch.iter() {
                        if let Event::Data { data, .. } = message.event {
                            course.take(data);
                        }
                    }
                }
            }
            Way::Send { sockets, call, caller, eps, at, stride } => {
                eps.clear();
                for _ in 0..course.ready {
                    eps.push(Mmep { sockfd: sockets.fds[*at].as_raw_fd(), num: 1, offset: 0 });
                    *at = (*at + *stride) % sockets.fds.len();
                }
                sockets.send(*call, caller, eps, course)?;
            }
        }
        Ok(())
    }

    /// The system calls that the library made.
    fn count(&self, course: &mut Course) {
        match self {
            Way::Together(_, caller, _) => course.calls = caller.system_calls(),
            Way::Stateful(receiver) => course.calls = receiver.system_calls(),
            Way::Send { call: Call::Recvmmmsg, caller, .. } => course.calls = caller.system_calls(),
            _ => {}
        }
    }
}

/// Sockets in an epoll set, and messages to receive into.
struct Sockets {
    fds: Vec<OwnedFd>,
    epoll: Epoll,
    events: Vec<libc::epoll_event>,
    headers: Vec<libc::mmsghdr>,
    memory: Vec<u8>,
    _pieces: Vec<libc::iovec>,
    flags: i32,
}

impl Sockets {
    fn new(fds: Vec<OwnedFd>, ready: usize, messages: usize, traffic: Traffic) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for fd in fds.iter().filter(|_| traffic != Traffic::UdpSend) {
            let fd = fd.as_raw_fd();
            epoll.control(libc::EPOLL_CTL_ADD, fd, fd as u64, libc::EPOLLIN)?;
        }
        let mut memory = vec![7; messages * STRIDE];
        let len = if traffic == Traffic::UdpSend { SIZE } else { ROOM };
        let mut pieces: Vec<libc::iovec> = memory
            .chunks_mut(STRIDE)
            .map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: len })
            .collect();
        let headers = pieces
            .iter_mut()
            .map(|piece| {
                // SAFETY: zero is a value of a header.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (piece, 1);
                header
            })
            .collect();
        // Of a stream the flag would discard bytes.
        let real_length = if traffic == Traffic::Tcp { 0 } else { libc::MSG_TRUNC };
        Ok(Self {
            fds,
            epoll,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; ready],
            headers,
            memory,
            _pieces: pieces,
            flags: libc::MSG_DONTWAIT | real_length,
        })
    }

    fn wait(&mut self, course: &mut Course) -> io::Result<usize> {
        course.waits += 1;
        Ok(self.epoll.wait(&mut self.events, PATIENCE.as_millis() as i32)?.len())
    }

    fn receive(&mut self, fd: RawFd, call: Call, course: &mut Course) -> io::Result<()> {
        course.calls += 1;
        let headers = self.headers.as_mut_ptr();
        // SAFETY: the headers point into `memory`, which nobody else uses.
        let received = unsafe {
            match call {
                Call::Recvmmsg => {
                    libc::recvmmsg(fd, headers, QUEUE as u32, self.flags as _, std::ptr::null_mut()) as isize
                }
                _ => libc::recvmsg(fd, &raw mut (*headers).msg_hdr, self.flags),
            }
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        let count = if call == Call::Recvmmsg { received as usize } else { 1 };
        for at in 0..count {
            course.take(self.data(at));
        }
        Ok(())
    }

    /// One message, the same, down every socket.
    fn send(
        &mut self,
        call: Call,
        caller: &mut Caller,
        eps: &mut [Mmep],
        course: &mut Course,
    ) -> io::Result<()> {
        if call == Call::Recvmmmsg {
            // SAFETY: the headers point into `memory`.
            unsafe { caller.sendmmmsg(eps, &mut self.headers, 0) }.map_err(io::Error::other)?;
            if let Some(ep) = eps.iter().find(|ep| ep.num != 1) {
                return Err(io::Error::from_raw_os_error(-ep.num));
            }
            course.got = eps.len();
            return Ok(());
        }
        for ep in eps {
            course.calls += 1;
            let headers = self.headers.as_mut_ptr();
            // SAFETY: the headers point into `memory`.
            let sent = unsafe {
                match call {
                    Call::Recvmmsg => libc::sendmmsg(ep.sockfd, headers, 1, 0) as isize,
                    _ => libc::sendmsg(ep.sockfd, &raw const (*headers).msg_hdr, 0),
                }
            };
            if sent < 0 {
                return Err(io::Error::last_os_error());
            }
            course.got += 1;
        }
        Ok(())
    }

    #[inline]
    fn data(&self, place: usize) -> &[u8] {
        &self.memory[place * STRIDE..]
    }
}

/// Bytes for a message, as a server has them that does not know what will come.
const ROOM: usize = 2048;

/// From one to the next: at powers of two their first bytes would share few lines of the cache.
const STRIDE: usize = ROOM + 64;

/// Messages that recvmmsg may take of a socket.
const QUEUE: usize = 8;

/// Of so many turns one has the time of each of its messages taken.
const TIMED: u64 = 16;

/// Parts of a run over which the median is taken.
const PARTS: usize = 50;

/// A message that takes longer is lost.
const PATIENCE: Duration = Duration::from_millis(500);
