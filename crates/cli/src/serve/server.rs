//! A server as a whole: its address, its threads, and its end.
use std::io;
use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use clap::{Args, ValueEnum};
use megapipe::{Config, CpuSet, EngineKind, Waker};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet as Affinity;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalsHandle, Signals};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use super::service::Service;
use super::worker::{Worker, WorkerError};

/// Descriptors that a server needs besides its connections, and each thread of it.
const DESCRIPTORS_RESERVED: usize = 64;
const DESCRIPTORS_PER_THREAD: usize = 8;

/// What every server can be told.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArguments {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:11211", value_parser = parse_address)]
    pub(crate) listen: SocketAddr,
    /// Threads, each with a channel and a listener of its own [default: one for each CPU]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Pin each thread to a CPU, and give it the connections that arrive there
    #[arg(long)]
    pin: bool,
    /// Connections that may be open at once
    #[arg(long, value_name = "N", default_value = "16384")]
    max_connections: NonZeroUsize,
    /// How to talk to the kernel [default: io_uring where it is allowed, else epoll]
    #[arg(long, value_enum)]
    engine: Option<Engine>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    Uring,
    Epoll,
}

/// Why a server could not start, or ended by itself.
#[derive(Debug, Error)]
pub(crate) enum ServerError {
    #[error("cannot listen on {address}; choose another address with --listen")]
    Listen {
        address: SocketAddr,
        #[source]
        cause: io::Error,
    },
    #[error("cannot find out which CPUs may be used, which --pin needs")]
    Affinity(#[source] io::Error),
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
    #[error("cannot start a thread; use fewer with --threads")]
    Thread(#[source] io::Error),
    #[error("thread {thread} cannot run")]
    Worker {
        thread: usize,
        #[source]
        cause: WorkerError,
    },
}

/// A server with an address, not yet serving.
pub(crate) struct Server {
    socket: Socket,
    address: SocketAddr,
    threads: usize,
    /// The CPU of each thread, if they are pinned.
    cpus: Option<Vec<usize>>,
    max_connections: usize,
    engine: Option<EngineKind>,
}

/// What the threads of a server share.
pub(crate) struct Shared {
    pub(crate) stopping: AtomicBool,
    /// Connections open in all threads.
    pub(crate) open: AtomicUsize,
    pub(crate) max_connections: usize,
}

impl Server {
    pub(crate) fn bind(arguments: &ServerArguments) -> Result<Self, ServerError> {
        let address = arguments.listen;
        let (socket, address) = bind(address).map_err(|cause| ServerError::Listen { address, cause })?;
        let cpus = if arguments.pin { Some(allowed_cpus()?) } else { None };
        let threads = arguments.threads.or_else(|| thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZeroUsize::get);
        Ok(Self {
            socket,
            address,
            threads,
            cpus,
            max_connections: connections_possible(arguments.max_connections.get(), threads),
            engine: arguments.engine.map(|engine| match engine {
                Engine::Uring => EngineKind::Uring,
                Engine::Epoll => EngineKind::Epoll,
            }),
        })
    }

    /// The address it has, with the port that was taken.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Serves until SIGINT or SIGTERM, or until no thread can go on.
    pub(crate) fn run<S: Service>(&self, service: S) -> Result<(), ServerError> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(ServerError::Signals)?;
        let running = LastOne { left: AtomicUsize::new(self.threads), signals: signals.handle() };
        let shared = Shared {
            stopping: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            max_connections: self.max_connections,
        };
        thread::scope(|scope| {
            let (started, starts) = mpsc::channel();
            let mut workers = Vec::new();
            let mut result = Ok(());
            for number in 0..self.threads {
                let (service, shared, running, started) = (&service, &shared, &running, started.clone());
                let body = move || {
                    let _leave = Leave(running);
                    self.work(number, service, shared, started)
                };
                match thread::Builder::new().name(format!("megapipe-{number}")).spawn_scoped(scope, body) {
                    Ok(worker) => workers.push(worker),
                    Err(error) => result = Err(ServerError::Thread(error)),
                }
            }
            drop(started);
            // Ends when each thread has told that it serves, or has ended.
            let wakers: Vec<Waker> = starts.iter().collect();
            if wakers.len() == self.threads {
                announce(self.address);
                signals.forever().next();
            }
            shared.stopping.store(true, Ordering::Release);
            wakers.iter().for_each(Waker::wake);
            for (thread, worker) in workers.into_iter().enumerate() {
                let ended = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                if let Err(cause) = ended {
                    result = Err(ServerError::Worker { thread, cause });
                }
            }
            result
        })
    }

    /// The life of one thread.
    fn work<S: Service>(
        &self,
        number: usize,
        service: &S,
        shared: &Shared,
        started: mpsc::Sender<Waker>,
    ) -> Result<(), WorkerError> {
        let mask = self.pin(number);
        let config = Config {
            engine: self.engine,
            // Answers lie in memory of their own, so a queue of them holds up no reader.
            write_queue_max: 4096,
            // One more than may be served: it is told so.
            lwsockets_max: u32::try_from(self.max_connections).unwrap_or(u32::MAX).saturating_add(1),
            ..Config::default()
        };
        let mut worker = Worker::new(config, self.socket.as_fd(), &mask, number, service, shared)?;
        // Nobody stops to listen before all have told.
        let _ = started.send(worker.waker());
        drop(started);
        let result = worker.run();
        if let Err(error) = &result {
            tracing::error!(thread = number, %error, "a serving thread ends; the others go on");
        }
        result
    }

    /// Pins the calling thread, if that is asked for; returns the CPUs whose connections it gets.
    fn pin(&self, number: usize) -> CpuSet {
        let Some(cpus) = &self.cpus else {
            return CpuSet::empty();
        };
        let cpu = cpus[number % cpus.len()];
        let mut affinity = Affinity::new();
        affinity.set(cpu);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &affinity) {
            tracing::warn!(cpu, %error, "cannot pin a thread");
            return CpuSet::empty();
        }
        u32::try_from(cpu).map_or_else(|_| CpuSet::empty(), CpuSet::of)
    }
}

/// Ends the wait for signals when no thread is left.
struct LastOne {
    left: AtomicUsize,
    signals: SignalsHandle,
}

/// A thread's leaving, also by a panic.
struct Leave<'a>(&'a LastOne);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.signals.close();
        }
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, io::Error> {
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    text.to_socket_addrs()?.next().ok_or_else(nowhere)
}

/// A socket that every thread's listener can share the address of.
fn bind(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let open = || Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let socket = open()?;
    // A port that we choose is used again in spite of old connections in TIME_WAIT. One that the
    // kernel chooses must not be given to others with this option, as long as nobody listens on it.
    if address.port() != 0 {
        // Without SO_REUSEPORT this fails if another server listens there, be it one that would
        // share the port and take a part of our connections.
        let probe = open()?;
        probe.set_reuse_address(true)?;
        probe.bind(&address.into())?;
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, bound))
}

fn allowed_cpus() -> Result<Vec<usize>, ServerError> {
    let allowed =
        rustix::thread::sched_getaffinity(None).map_err(|error| ServerError::Affinity(error.into()))?;
    Ok((0..Affinity::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Raises the limit of descriptors as far as need be and may be; returns how many connections fit.
fn connections_possible(wanted: usize, threads: usize) -> usize {
    let reserved = (DESCRIPTORS_RESERVED + DESCRIPTORS_PER_THREAD * threads) as u64;
    let needed = reserved.saturating_add(wanted as u64);
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let Some(current) = limit.current else {
        return wanted;
    };
    let possible = needed.min(limit.maximum.unwrap_or(u64::MAX));
    let raised = possible > current && {
        let raised = Rlimit { current: Some(possible), maximum: limit.maximum };
        rustix::process::setrlimit(Resource::Nofile, raised).is_ok()
    };
    let descriptors = if raised { possible } else { current };
    let connections = descriptors.saturating_sub(reserved).clamp(1, wanted as u64) as usize;
    if connections < wanted {
        tracing::warn!(
            "--max-connections {wanted} needs {needed} descriptors, of which the limit (ulimit -n) allows \
             {descriptors}: it is {connections} now"
        );
    }
    connections
}

/// Tells whoever started the server that it serves. That nobody reads it is no reason to end.
fn announce(address: SocketAddr) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "listening on {address}").and_then(|()| stdout.flush());
}
