//! The server of the workload: it looks for messages and takes them, by one of the calls.
use sys::file::raise_open_files;

use crate::Reason;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use mmsg::receiver::{Event, Options};
use mmsg::{Caller, Mmep, Receiver};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sys::clock::monotonic;

use super::aio::Aio;
use super::gate::Gate;
use super::lowat::Marked;
use super::{Call, SIZE, Traffic};
use crate::cpu::{self, CpuSet};
use crate::epoll::Epoll;
use crate::part::{Part, print};
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

impl Part for Task {
    const NAME: &'static str = "mmsg-server";

    /// Prints the ports, takes the turns, and prints what they cost.
    fn run(self) -> Result<(), Reason> {
        cpu::pin(self.cpus.as_slice())?;
        raise_open_files(u64::MAX)?;
        let gate = Gate::of(region::inherited(self.gate))?;
        let sockets = open(&self)?;
        match self.call {
            Call::Stateful => serve(&self, &gate, receiver(sockets)?),
            Call::Aio => serve(&self, &gate, Aio::new(&self, sockets)?),
            Call::Lowat => serve(&self, &gate, Marked::new(&self, sockets)?),
            _ => serve(&self, &gate, Sockets::new(&self, sockets)?),
        }
    }
}

/// How a server does its turns.
pub(super) trait Way {
    fn turn(&mut self, course: &mut Course) -> Result<(), Reason>;

    /// Receives what the last turn left.
    fn rest(&mut self, _course: &mut Course) -> Result<(), Reason> {
        Ok(())
    }

    /// Calls to receive or to send that the library made.
    fn calls(&self) -> u64;
}

fn serve(task: &Task, gate: &Gate, mut way: impl Way) -> Result<(), Reason> {
    let mut course = Course { ready: task.ready, ..Course::default() };
    course.turns.reserve(task.turns as usize);
    gate.done(1);
    for turn in 0..task.turns {
        let Some(sent_at) = gate.wait_sent(turn + 1) else { break };
        course.got = 0;
        course.sent_at = turn.is_multiple_of(TIMED).then_some(sent_at);
        let began = monotonic();
        way.turn(&mut course)?;
        if course.sent_at.is_none() {
            course.turns.push(monotonic() - began);
        }
        course.packets += course.got as u64;
        gate.done(turn + 2);
    }
    course.got = 0;
    way.rest(&mut course)?;
    course.packets += course.got as u64;
    course.lost = (task.turns * task.ready as u64).saturating_sub(course.packets);
    course.calls += way.calls();
    print(&course.report())
}

/// The server's sockets; their ports, or that of their listener, are told.
fn open(task: &Task) -> Result<Vec<OwnedFd>, Reason> {
    if task.traffic == Traffic::Tcp {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        print(&[listener.local_addr()?.port()])?;
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
    print(&ports?)?;
    Ok(sockets.into_iter().map(OwnedFd::from).collect())
}

/// Turns, and what they took.
#[derive(Default)]
pub(super) struct Course {
    pub(super) ready: usize,
    turns: Vec<u64>,
    delays: Vec<u64>,
    /// In some turns each message's time is taken, which costs some itself: since when.
    sent_at: Option<u64>,
    /// Messages of this turn.
    pub(super) got: usize,
    pub(super) calls: u64,
    pub(super) waits: u64,
    packets: u64,
    lost: u64,
    /// What was read of the messages, so that they are read.
    sum: u64,
}

impl Course {
    #[inline]
    pub(super) fn take(&mut self, data: &[u8]) {
        self.sum = self.sum.wrapping_add(u64::from(*data.first().unwrap_or(&0)));
        self.got += 1;
        if let Some(sent_at) = self.sent_at {
            self.delays.push(monotonic().saturating_sub(sent_at));
        }
    }

    /// What the record has. The median over parts of the run: the machine takes the CPU away now and then.
    fn report(mut self) -> Value {
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
        json!({
            "packets": self.packets,
            "lost": self.lost,
            "receive_calls": self.calls,
            "wait_calls": self.waits,
            "cpu_ns_per_packet": parts.get(parts.len() / 2).copied().unwrap_or(0.0),
            "p50_us": delay(0.5),
            "p99_us": delay(0.99),
        })
    }
}

fn receiver(sockets: Vec<OwnedFd>) -> Result<Receiver, Reason> {
    let mut receiver = Receiver::new(&Options { sockets: sockets.len() as u32, ..Options::default() })?;
    for (at, socket) in sockets.into_iter().enumerate() {
        receiver.add(socket, at as u64)?;
    }
    Ok(receiver)
}

impl Way for Receiver {
    fn turn(&mut self, course: &mut Course) -> Result<(), Reason> {
        while course.got < course.ready {
            let batch = self.wait(course.ready - course.got, Some(PATIENCE))?;
            if batch.is_empty() {
                break;
            }
            for message in batch.iter() {
                if let Event::Data { data, .. } = message.event {
                    course.take(data);
                }
            }
        }
        Ok(())
    }

    fn calls(&self) -> u64 {
        self.system_calls()
    }
}

/// Sockets in an epoll set, and messages to receive into or to send.
struct Sockets {
    call: Call,
    traffic: Traffic,
    caller: Caller,
    eps: Vec<Mmep>,
    /// The next one to send on.
    at: usize,
    fds: Vec<OwnedFd>,
    epoll: Epoll,
    events: Vec<libc::epoll_event>,
    headers: Vec<libc::mmsghdr>,
    memory: Vec<u8>,
    _pieces: Vec<libc::iovec>,
    flags: i32,
}

impl Way for Sockets {
    fn turn(&mut self, course: &mut Course) -> Result<(), Reason> {
        if self.traffic == Traffic::UdpSend {
            return self.send(course);
        }
        while course.got < course.ready {
            course.waits += 1;
            let ready = self.epoll.wait(&mut self.events, PATIENCE.as_millis() as i32)?.len();
            match self.call {
                _ if ready == 0 => break,
                Call::Recvmmmsg => self.receive_together(ready, course)?,
                _ => (0..ready).try_for_each(|at| self.receive(self.events[at].u64 as RawFd, course))?,
            }
        }
        Ok(())
    }

    fn calls(&self) -> u64 {
        self.caller.system_calls()
    }
}

impl Sockets {
    fn new(task: &Task, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let sends = task.traffic == Traffic::UdpSend;
        for fd in fds.iter().filter(|_| !sends) {
            let fd = fd.as_raw_fd();
            epoll.control(libc::EPOLL_CTL_ADD, fd, fd as u64, libc::EPOLLIN)?;
        }
        let messages = match task.call {
            Call::Recvmmsg => QUEUE,
            // As the proposal's loop has: more places than sockets are ready.
            Call::Recvmmmsg => task.ready + SPARE,
            _ => 1,
        };
        let mut memory = vec![7; messages * STRIDE];
        let len = if sends { SIZE } else { ROOM };
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
        let real_length = if task.traffic == Traffic::Tcp { 0 } else { libc::MSG_TRUNC };
        Ok(Self {
            call: task.call,
            traffic: task.traffic,
            caller: Caller::new(),
            eps: Vec::new(),
            at: 0,
            fds,
            epoll,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; task.ready],
            headers,
            memory,
            _pieces: pieces,
            flags: libc::MSG_DONTWAIT | real_length,
        })
    }

    fn receive_together(&mut self, ready: usize, course: &mut Course) -> Result<(), Reason> {
        self.eps.clear();
        let events = self.events[..ready].iter();
        self.eps.extend(events.map(|event| Mmep { sockfd: event.u64 as i32, ..Mmep::default() }));
        // SAFETY: the headers point into `memory`, which nobody else uses.
        unsafe { self.caller.recvmmmsg(&mut self.eps, &mut self.headers, self.flags) }?;
        check(&self.eps)?;
        for ep in &self.eps {
            course.take(&self.memory[ep.offset as usize * STRIDE..]);
        }
        Ok(())
    }

    fn receive(&mut self, fd: RawFd, course: &mut Course) -> Result<(), Reason> {
        course.calls += 1;
        let headers = self.headers.as_mut_ptr();
        // SAFETY: the headers point into `memory`, which nobody else uses.
        let received = unsafe {
            match self.call {
                Call::Recvmmsg => {
                    libc::recvmmsg(fd, headers, QUEUE as u32, self.flags as _, std::ptr::null_mut()) as isize
                }
                _ => libc::recvmsg(fd, &raw mut (*headers).msg_hdr, self.flags).min(1),
            }
        };
        if received < 0 {
            return Err(io::Error::last_os_error().into());
        }
        for place in 0..received as usize {
            course.take(&self.memory[place * STRIDE..]);
        }
        Ok(())
    }

    /// One message, the same, down every socket of the turn.
    fn send(&mut self, course: &mut Course) -> Result<(), Reason> {
        self.eps.clear();
        let stride = super::stride(self.fds.len());
        for _ in 0..course.ready {
            self.eps.push(Mmep { sockfd: self.fds[self.at].as_raw_fd(), num: 1, offset: 0 });
            self.at = (self.at + stride) % self.fds.len();
        }
        course.got = self.eps.len();
        if self.call == Call::Recvmmmsg {
            // SAFETY: the headers point into `memory`.
            unsafe { self.caller.sendmmmsg(&mut self.eps, &mut self.headers, 0) }?;
            return check(&self.eps);
        }
        for ep in &self.eps {
            course.calls += 1;
            let headers = self.headers.as_mut_ptr();
            // SAFETY: the headers point into `memory`.
            let sent = unsafe {
                match self.call {
                    Call::Recvmmsg => libc::sendmmsg(ep.sockfd, headers, 1, 0) as isize,
                    _ => libc::sendmsg(ep.sockfd, &raw const (*headers).msg_hdr, 0),
                }
            };
            if sent < 0 {
                return Err(io::Error::last_os_error().into());
            }
        }
        Ok(())
    }
}

/// Each socket had its message.
fn check(eps: &[Mmep]) -> Result<(), Reason> {
    match eps.iter().find(|ep| ep.num != 1) {
        Some(ep) => Err(io::Error::from_raw_os_error(-ep.num).into()),
        None => Ok(()),
    }
}

/// Bytes for a message, as a server has them that does not know what will come.
pub(super) const ROOM: usize = 2048;

/// From one to the next: at powers of two their first bytes would share few lines of the cache.
pub(super) const STRIDE: usize = ROOM + 64;

/// Places that recvmmmsg has beside one for each socket.
const SPARE: usize = 70;

/// Messages that recvmmsg may take of a socket.
const QUEUE: usize = 8;

/// Of so many turns one has the time of each of its messages taken.
const TIMED: u64 = 16;

/// Parts of a run over which the median is taken.
const PARTS: usize = 50;

/// A message that takes longer is lost.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
