//! Programs of our own that wait as most programs do: a server with a thread for each connection, or a pool of threads, and a
//! client with a thread for each, which sends a message and waits for the answer.

use std::io::{self, ErrorKind, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::app::Operation;
use crate::Reason;
use crate::epoll::Epoll;
use crate::load::Report;
use crate::part::{self, Part, print};

/// Threads of a pool.
const POOL: usize = 4;
const SINGLE_SHOT: i32 = libc::EPOLLIN | libc::EPOLLONESHOT;

/// A side of such a pair.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Waits {
    pub(super) operation: Operation,
    pub(super) port: u16,
    /// Bytes of a message.
    pub(super) size: u32,
    /// `None`: the server.
    pub(super) client: Option<Client>,
}

/// What the client does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) threads: u32,
    pub(super) warm_up: Duration,
    pub(super) window: Duration,
    /// Messages a second of all threads; `None`: each sends the next one after an answer.
    pub(super) rate: Option<f64>,
}

impl Part for Waits {
    const NAME: &'static str = "app-waits";

    fn run(self) -> Result<(), Reason> {
        match &self.client {
            None if self.operation == Operation::ByPool => serve_by_pool(self.port, self.message().len()),
            None => self.serve(),
            Some(client) => print(&self.ask(client)?),
        }
    }
}

impl Waits {
    fn message(&self) -> Vec<u8> {
        vec![7; self.size as usize]
    }

    fn serve(&self) -> Result<(), Reason> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))?;
        loop {
            let (socket, _) = listener.accept()?;
            let (operation, mut message) = (self.operation, self.message());
            part::start_thread("connection", move || {
                let mut waiter = Waiter::new(operation, socket)?;
                while waiter.receive(&mut message)? {
                    waiter.socket.write_all(&message)?;
                }
                Ok(())
            })?;
        }
    }

    fn ask(&self, client: &Client) -> Result<Report, Reason> {
        let begin = Instant::now() + client.warm_up;
        let end = begin + client.window;
        let all = Arc::new(AtomicU64::new(0));
        let threads = (0..client.threads).map(|number| {
            let (socket, all) = (TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?, Arc::clone(&all));
            let period = client.rate.map(|rate| Duration::from_secs_f64(f64::from(client.threads) / rate));
            // Threads that keep a rate take turns.
            let first = Instant::now() + period.unwrap_or_default() * number / client.threads;
            let (operation, mut message) = (self.operation, self.message());
            let run = move || -> Result<Histogram<u64>, Reason> {
                let mut times = Histogram::new(3)?;
                let mut waiter = Waiter::new(operation, socket)?;
                let mut due = first;
                loop {
                    match period {
                        None => due = Instant::now(),
                        Some(period) => {
                            thread::sleep(due.saturating_duration_since(Instant::now()));
                            due += period;
                        }
                    }
                    if due >= end {
                        return Ok(times);
                    }
                    let sent = if let Some(period) = period { due - period } else { due };
                    waiter.socket.write_all(&message)?;
                    if !waiter.receive(&mut message)? {
                        return Err("the server has closed a connection".into());
                    }
                    all.fetch_add(1, Ordering::Relaxed);
                    if sent >= begin {
                        times.record(sent.elapsed().as_nanos() as u64)?;
                    }
                }
            };
            Ok(thread::spawn(move || run().map_err(|error| error.to_string())))
        });
        let threads: Vec<_> = threads.collect::<io::Result<_>>()?;
        let mut times = Histogram::<u64>::new(3)?;
        for thread in threads {
            times.add(thread.join().map_err(|_| "a thread of the client has panicked")??)?;
        }
        Ok(Report::of(&times, client.window, times.len(), all.load(Ordering::Relaxed)))
    }
}

fn serve_by_pool(port: u16, size: usize) -> Result<(), Reason> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let set = Arc::new(Epoll::new()?);
    for _ in 0..POOL {
        let set = Arc::clone(&set);
        part::start_thread("pool", move || {
            let mut bytes = vec![0; size];
            loop {
                for event in set.wait(&mut [libc::epoll_event { events: 0, u64: 0 }], -1)? {
                    answer(&set, event.u64 as RawFd, &mut bytes)?;
                }
            }
        })?;
    }
    loop {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let fd = socket.into_raw_fd();
        set.control(libc::EPOLL_CTL_ADD, fd, fd as u64, SINGLE_SHOT)?;
    }
}

/// Sends back what a connection of a pool has.
fn answer(set: &Epoll, fd: RawFd, bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: `serve_by_pool` leaves it open, and this thread alone has its single shot. It is not closed here.
    let mut socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    match socket.read(bytes) {
        Ok(0) => return set.control(libc::EPOLL_CTL_DEL, fd, 0, 0),
        Ok(count) => socket.write_all(&bytes[..count])?,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    set.control(libc::EPOLL_CTL_MOD, fd, fd as u64, SINGLE_SHOT)
}

/// A connection, and how its thread waits for it.
struct Waiter {
    operation: Operation,
    socket: TcpStream,
    set: Option<Epoll>,
}

impl Waiter {
    fn new(operation: Operation, socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let events = match operation {
            Operation::ByEpoll => Some(libc::EPOLLIN),
            Operation::ByEdge => Some(libc::EPOLLIN | libc::EPOLLET),
            _ => None,
        };
        socket.set_nonblocking(!matches!(operation, Operation::ByRead | Operation::ByPool))?;
        let set = events.map(|events| {
            let set = Epoll::new()?;
            set.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), 0, events).map(|()| set)
        });
        Ok(Self { operation, socket, set: set.transpose()? })
    }

    /// A whole message. False: the other side has closed.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < message.len() {
            // Edges are waited for once nothing is left; a level before each read.
            if !matches!(self.operation, Operation::ByRead | Operation::ByEdge | Operation::ByPool) {
                self.wait()?;
            }
            match self.socket.read(&mut message[done..]) {
                Ok(0) => return Ok(false),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.operation == Operation::ByEdge {
                        self.wait()?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// By libc's calls, which a preload library sees.
    fn wait(&self) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        let status = match (&self.set, self.operation) {
            (Some(set), _) => {
                return set.wait(&mut [libc::epoll_event { events: 0, u64: 0 }], -1).map(drop);
            }
            (None, Operation::BySelect) => {
                // SAFETY: a set of descriptors is plain words, and the descriptor is below FD_SETSIZE: a process has few.
                unsafe {
                    let mut set: libc::fd_set = std::mem::zeroed();
                    libc::FD_SET(fd, &raw mut set);
                    libc::select(fd + 1, &raw mut set, null_mut(), null_mut(), null_mut())
                }
            }
            (None, _) => {
                let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one descriptor.
                unsafe { libc::poll(&raw mut one, 1, -1) }
            }
        };
        match io::Error::last_os_error() {
            error if status < 0 && error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
