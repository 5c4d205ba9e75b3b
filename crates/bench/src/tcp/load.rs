//! The client: kernel sockets, driven by a thread of its own on each of its CPUs.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::SIZE;
use crate::cpu::{self, CpuSet};
use crate::epoll::Epoll;

/// What one thread of the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// So many connections at once, each for one request and its answer.
    Short { at_once: usize },
    /// So many connections, of which so many have a request under way: the next is always on the one
    /// that was silent for longest.
    Echo { connections: usize, active: usize },
    /// One connection that is written to as fast as it takes bytes.
    Write,
    /// One connection that is read from as fast as bytes come.
    Read,
}

/// Threads at work, until it is dropped.
pub(super) struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    /// Transactions, or bytes.
    done: AtomicU64,
    failures: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// Begins the work once on each of the CPUs.
    pub(super) fn start(target: SocketAddr, work: Work, cpus: &CpuSet) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let threads = cpus.as_slice().iter().map(|&cpu| {
            let shared = shared.clone();
            thread::Builder::new().spawn(move || {
                cpu::pin(&[cpu])?;
                match work {
                    Work::Short { at_once } => Short::new(target, at_once)?.run(&shared),
                    Work::Echo { connections, active } => echo(target, connections, active, &shared),
                    Work::Write => write(target, &shared),
                    Work::Read => read(target, &shared),
                }
            })
        });
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        Ok(Self { shared, threads })
    }

    /// Transactions, or bytes, so far.
    pub(super) fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Connections that failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// Whether no thread has ended by itself.
    pub(super) fn is_running(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// CPU time of all its threads.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        self.threads.iter().map(crate::clock::of_thread).sum()
    }

    /// Why a thread has ended by itself, if one has.
    pub(super) fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut ended = Ok(());
        for thread in self.threads.drain(..) {
            let result = thread.join().unwrap_or_else(|_| Err(io::Error::other("the client panicked")));
            ended = ended.and(result);
        }
        ended
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // After an error of the controller, which is reported in place of this one.
        let _ = self.end();
    }
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn add(&self, done: usize) {
        self.done.fetch_add(done as u64, Ordering::Relaxed);
    }
}

/// Connections for one request each. One epoll_ctl(2) a connection: it is added once, by edge, for
/// the end of connect and for the answer.
struct Short {
    target: SocketAddr,
    epoll: Epoll,
    slots: Vec<Slot>,
}

struct Slot {
    socket: Socket,
    sent: bool,
    received: usize,
}

impl Short {
    fn new(target: SocketAddr, at_once: usize) -> io::Result<Self> {
        let mut short = Self { target, epoll: Epoll::new()?, slots: Vec::with_capacity(at_once) };
        for index in 0..at_once {
            let slot = short.open(index)?;
            short.slots.push(slot);
        }
        Ok(short)
    }

    fn open(&self, index: usize) -> io::Result<Slot> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        match socket.connect(&self.target.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        self.epoll.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), index as u64, events)?;
        Ok(Slot { socket, sent: false, received: 0 })
    }

    fn run(mut self, shared: &Shared) -> io::Result<()> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; self.slots.len()];
        while shared.goes_on() {
            for event in self.epoll.wait(&mut events, PATIENCE_MS)? {
                let index = event.u64 as usize;
                match self.slots[index].advance(event.events as i32) {
                    Ok(false) => continue,
                    Ok(true) => shared.add(1),
                    Err(_) => drop(shared.failures.fetch_add(1, Ordering::Relaxed)),
                }
                self.slots[index] = self.open(index)?;
            }
        }
        Ok(())
    }
}

impl Slot {
    /// Whether the answer is there as a whole.
    fn advance(&mut self, events: i32) -> io::Result<bool> {
        if events & libc::EPOLLERR != 0 {
            return Err(self.socket.take_error()?.unwrap_or(ErrorKind::ConnectionReset.into()));
        }
        if !self.sent && events & libc::EPOLLOUT != 0 {
            self.socket.send(&[b'q'; SIZE])?;
            self.sent = true;
        }
        if events & libc::EPOLLIN == 0 {
            return Ok(false);
        }
        let mut answer = [0; SIZE];
        match (&self.socket).read(&mut answer)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.received += count;
                Ok(self.received == SIZE)
            }
        }
    }
}

/// A connection of the kernel's that waits for its answer no longer than is sensible.
fn connected(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    let patience = Some(Duration::from_millis(PATIENCE_MS as u64));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)?;
    Ok(stream)
}

fn echo(target: SocketAddr, connections: usize, active: usize, shared: &Shared) -> io::Result<()> {
    let epoll = Epoll::new()?;
    let streams = (0..connections).map(|_| connected(target)).collect::<io::Result<Vec<_>>>()?;
    for (index, stream) in streams.iter().enumerate() {
        epoll.control(libc::EPOLL_CTL_ADD, stream.as_raw_fd(), index as u64, libc::EPOLLIN)?;
    }
    let mut received = vec![0; connections];
    let mut silent = (0..connections).collect::<VecDeque<_>>();
    let ask = |silent: &mut VecDeque<usize>| match silent.pop_front() {
        Some(index) => (&streams[index]).write_all(&[b'q'; SIZE]),
        None => Ok(()),
    };
    for _ in 0..active {
        ask(&mut silent)?;
    }
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; active];
    while shared.goes_on() {
        for event in epoll.wait(&mut events, PATIENCE_MS)? {
            let index = event.u64 as usize;
            match (&streams[index]).read(&mut [0; SIZE])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => received[index] += count,
            }
            if received[index] == SIZE {
                received[index] = 0;
                silent.push_back(index);
                shared.add(1);
                ask(&mut silent)?;
            }
        }
    }
    Ok(())
}

fn write(target: SocketAddr, shared: &Shared) -> io::Result<()> {
    let mut stream = connected(target)?;
    let bytes = vec![b'q'; BULK];
    while shared.goes_on() {
        shared.add(unless_late(stream.write(&bytes))?);
    }
    Ok(())
}

fn read(target: SocketAddr, shared: &Shared) -> io::Result<()> {
    let mut stream = connected(target)?;
    let mut bytes = vec![0; BULK];
    while shared.goes_on() {
        shared.add(unless_late(stream.read(&mut bytes))?);
    }
    Ok(())
}

/// Nothing came or went within the patience of a blocking call.
fn unless_late(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

/// Bytes of one call in bulk.
pub(super) const BULK: usize = 256 << 10;

/// How long a thread waits before it checks whether it is to stop.
const PATIENCE_MS: i32 = 100;
