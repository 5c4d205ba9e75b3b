//! A server as many are: it listens, forks its workers, and each waits for the shared listener by epoll. A request for
//! `BLOCKING` blocks its worker.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::sched_getcpu;
use serde::{Deserialize, Serialize};
use socket2::SockRef;

use super::WORKERS;
use crate::epoll::Epoll;
use crate::load::BLOCKING;
use crate::part::Part;
use crate::peer::listener;
use crate::region::{self, Region};
use crate::{Reason, cpu};

/// How the server is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Where it listens.
    pub address: SocketAddr,
    /// Each worker has a listener of its own, with SO_REUSEPORT.
    pub reuseport: bool,
    /// The descriptor of the memory for counts.
    pub counts: RawFd,
}

/// What a worker has accepted.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Count {
    /// All of it.
    accepted: u64,
    /// Of these, on the CPU that handled the SYN.
    local: u64,
}

/// What each worker has accepted, in memory that they and the controller share.
pub(super) struct Counts(Region);

impl Counts {
    /// In memory of [`COUNTS_BYTES`].
    pub(super) fn of(memory: impl AsFd) -> io::Result<Self> {
        Region::map(memory, COUNTS_BYTES).map(Self)
    }

    fn add(&self, worker: usize, is_local: bool) {
        self.0.word(worker * PLACE).fetch_add(1, Relaxed);
        self.0.word(worker * PLACE + 8).fetch_add(is_local.into(), Relaxed);
    }

    /// Of each worker.
    pub(super) fn all(&self) -> Vec<Count> {
        let read = |at| self.0.word(at).load(Relaxed);
        (0..WORKERS).map(|at| Count { accepted: read(at * PLACE), local: read(at * PLACE + 8) }).collect()
    }
}

/// Bytes of the memory for counts, and of a worker's place there.
pub(super) const COUNTS_BYTES: usize = 4096;
const PLACE: usize = 64;

/// How long a request for [`BLOCKING`] takes.
const BLOCKS: Duration = Duration::from_millis(20);

impl Part for Task {
    const NAME: &'static str = "listen-server";

    /// Serves until it is killed.
    fn run(self) -> Result<(), Reason> {
        let counts = Counts::of(region::inherited(self.counts))?;
        let shared = if self.reuseport { None } else { Some(listener(self.address, false)?) };
        for worker in 0..WORKERS {
            // SAFETY: this process has one thread.
            match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error().into()),
                0 => {
                    set_parent_process_death_signal(Some(Signal::KILL))?;
                    cpu::pin(&[worker % std::thread::available_parallelism()?.get()])?;
                    let listener = shared.map_or_else(|| listener(self.address, true), Ok)?;
                    return Ok(self.serve(&listener, |is_local| counts.add(worker, is_local))?);
                }
                _ => {}
            }
        }
        loop {
            std::thread::park();
        }
    }
}

impl Task {
    /// A worker.
    fn serve(&self, listener: &TcpListener, count: impl Fn(bool)) -> io::Result<()> {
        let epoll = Epoll::new()?;
        // As nginx does it: a connection wakes one worker.
        let shared = if self.reuseport { 0 } else { libc::EPOLLEXCLUSIVE };
        let watch = |fd: RawFd, events| epoll.control(libc::EPOLL_CTL_ADD, fd, fd as u64, events);
        watch(listener.as_raw_fd(), libc::EPOLLIN | shared)?;
        let mut connections = HashMap::new();
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            for event in epoll.wait(&mut events, -1)? {
                // A client that is gone is its own affair.
                if let Some(connection) = connections.remove(&(event.u64 as RawFd)) {
                    let _ = self.answer(connection);
                } else if let Ok((new, _)) = listener.accept() {
                    count(SockRef::from(&new).cpu_affinity().is_ok_and(|cpu| cpu == sched_getcpu()));
                    watch(new.as_raw_fd(), libc::EPOLLIN)?;
                    connections.insert(new.as_raw_fd(), new);
                }
            }
        }
    }

    fn answer(&self, mut connection: TcpStream) -> io::Result<()> {
        let mut request = [0; 1024];
        let count = connection.read(&mut request)?;
        if request[..count].starts_with(format!("GET {BLOCKING} ").as_bytes()) {
            std::thread::sleep(BLOCKS);
        }
        connection.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
    }
}
