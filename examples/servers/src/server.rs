//! A server as a whole: its address, its threads, and its end.

use std::io;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use megapipe::packet::group::Queue;
use megapipe::packet::tun::OpenError as TunError;
use megapipe::{AttachError, Config, CpuSet, CreateError, EngineKind, Promotion, Stack, TunNetwork, Waker};
use rustix::thread::CpuSet as Affinity;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalsHandle, Signals};
use socket2::Socket;
use thiserror::Error;

use crate::address::{self, ListenError};
use crate::resources::{self, ResourceError};
use crate::service::Service;
use crate::worker::{self, Worker, WorkerError};

/// Connections of one stack with data outstanding; more wait until it is their turn.
const ACTIVE_MAX: usize = 4096;

/// The longest timeout.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Arguments of every server; `PORT` is its usual one.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments<const PORT: u16> {
    #[arg(long, value_name = "ADDR", value_parser = address::parse, help = listen_help(PORT))]
    listen: Option<SocketAddr>,
    /// Serve from a TCP of the server's own, in user space (experimental): on a new TUN device of this name, at this
    /// address, for the clients in its prefix. The kernel's end of the device gets the first other address
    #[arg(long, value_name = "tun:NAME,ADDRESS/PREFIX")]
    stack: Option<TunNetwork>,
    /// Threads, each with a channel and a listener of its own [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = parse_count, allow_hyphen_values = true)]
    threads: Option<NonZeroUsize>,
    /// When a thread ends, print what its channel has counted, packets of its stack included, as a line on standard
    /// output
    #[arg(long)]
    stats: bool,
    /// Pin each thread to a CPU, and give it the connections that arrive there
    #[arg(long)]
    pin: bool,
    /// Connections that may be open at once
    #[arg(long, value_name = "N", default_value = "16384", value_parser = parse_count, allow_hyphen_values = true)]
    max_connections: NonZeroUsize,
    /// Seconds after which a client that neither sends nor reads is disconnected, up to an eighth later; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "0", allow_hyphen_values = true, value_parser = parse_idle_timeout)]
    idle_timeout: Duration,
    /// Seconds that clients have, after SIGTERM or SIGINT, to take their answers and to close; a second signal ends the
    /// server at once
    #[arg(long, value_name = "SECONDS", default_value = "5", allow_hyphen_values = true, value_parser = parse_drain_timeout)]
    drain_timeout: Duration,
    /// How to talk to the kernel [default: io_uring where it is allowed, else epoll]
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Whether connections from programs on this host may move to shared memory: both ends have to run Megapipe, and a
    /// monitor has to allow it
    #[arg(long, value_enum, default_value = "off")]
    promotion: PromotionArgument,
    /// Socket of the monitor [default: $MEGAPIPE_MONITOR; else the system's, else this user's, if it runs]
    #[arg(long, value_name = "PATH", requires = "promotion")]
    monitor: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    Uring,
    Epoll,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PromotionArgument {
    /// Never
    Off,
    /// Those that prove to be worth it, by some messages
    Auto,
    /// Each as soon as it exists
    Eager,
}

/// Why a server could not start, or ended by itself.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct ServerError(#[from] Cause);

#[derive(Debug, Error)]
enum Cause {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Resources(#[from] ResourceError),
    #[error("{address} is no address of the stack, or has no port: give --listen one of {stack}, and a port")]
    NotOfStack { address: SocketAddr, stack: TunNetwork },
    #[error(transparent)]
    Tun(#[from] TunError),
    #[error("cannot find out which CPUs may be used, which --pin needs")]
    Affinity(#[source] io::Error),
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
    #[error(
        "cannot start thread {thread} of {threads}; use fewer with --threads, or raise the limit (ulimit -u, the \
         container's pids limit)"
    )]
    Thread {
        thread: usize,
        threads: usize,
        #[source]
        cause: io::Error,
    },
    /// What is wrong with every thread's channel, not with this thread's.
    #[error(transparent)]
    Channel(CreateError),
    #[error("thread {thread} of {threads} cannot run")]
    Worker {
        thread: usize,
        threads: usize,
        #[source]
        cause: WorkerError,
    },
}

/// A server with an address, not yet serving.
pub struct Server {
    place: Place,
    address: SocketAddr,
    threads: usize,
    stats: bool,
    /// The CPU of each thread, if they are pinned.
    cpus: Option<Vec<usize>>,
    max_connections: usize,
    idle_timeout: Duration,
    drain_timeout: Duration,
    engine: Option<EngineKind>,
    promotion: Promotion,
    monitor: Option<PathBuf>,
}

/// Where a server listens.
enum Place {
    /// At the address of this socket of the kernel's.
    Kernel(Socket),
    /// On stacks of its own, each on one of these queues of a device until its thread ends.
    Stack(TunNetwork, Mutex<Vec<Queue>>),
}

/// What the threads of a server share.
pub(crate) struct Shared {
    /// A [`Phase`].
    phase: AtomicU8,
    /// Connections open in all threads.
    pub(crate) open: AtomicUsize,
    pub(crate) max_connections: usize,
    /// Zero: clients may be idle for ever.
    pub(crate) idle_timeout: Duration,
    pub(crate) drain_timeout: Duration,
}

/// How far a server is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serve,
    /// Accept no more, and let clients take their answers.
    Drain,
    /// End at once.
    End,
}

impl Shared {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            phase if phase == Phase::Serve as u8 => Phase::Serve,
            phase if phase == Phase::Drain as u8 => Phase::Drain,
            _ => Phase::End,
        }
    }

    /// Begins a phase, and wakes the threads.
    fn enter(&self, phase: Phase, threads: &[Waker]) {
        self.phase.store(phase as u8, Ordering::Release);
        threads.iter().for_each(Waker::wake);
    }
}

impl Server {
    /// Takes the address and what the threads will need of the system.
    pub fn bind<const PORT: u16>(arguments: &ServerArguments<PORT>) -> Result<Self, ServerError> {
        let threads = arguments.threads.or_else(|| thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZeroUsize::get);
        let max_connections =
            resources::reserve(threads, arguments.max_connections.get()).map_err(Cause::from)?;
        let (place, address) = place(arguments, threads)?;
        let cpus = if arguments.pin { Some(allowed_cpus()?) } else { None };
        Ok(Self {
            place,
            address,
            threads,
            stats: arguments.stats,
            cpus,
            max_connections,
            idle_timeout: arguments.idle_timeout,
            drain_timeout: arguments.drain_timeout,
            engine: arguments.engine.map(|engine| match engine {
                Engine::Uring => EngineKind::Uring,
                Engine::Epoll => EngineKind::Epoll,
            }),
            promotion: match arguments.promotion {
                PromotionArgument::Off => Promotion::Off,
                PromotionArgument::Auto => Promotion::Auto,
                PromotionArgument::Eager => Promotion::Eager,
            },
            monitor: arguments.monitor.clone(),
        })
    }

    /// The address it has, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Threads that will serve.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Connections that may be open at once, as far as the limits of the system allow.
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Serves until SIGINT or SIGTERM, or until no thread can go on; drains after the first signal,
    /// until a second one.
    pub fn run<S: Service>(&self, service: S) -> Result<(), ServerError> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Cause::Signals)?;
        let running = LastOne { left: AtomicUsize::new(self.threads), signals: signals.handle() };
        let shared = Shared {
            phase: AtomicU8::new(Phase::Serve as u8),
            open: AtomicUsize::new(0),
            max_connections: self.max_connections,
            idle_timeout: self.idle_timeout,
            drain_timeout: self.drain_timeout,
        };
        thread::scope(|scope| {
            let mut wakers: Vec<Waker> = Vec::new();
            let mut workers = Vec::new();
            let mut result = Ok(());
            // One after the other: the first that cannot start is the last that tries.
            for thread in 0..self.threads {
                let (started, start) = mpsc::sync_channel(1);
                let (service, shared, running) = (&service, &shared, &running);
                let body = move || {
                    let _leave = Leave(running);
                    self.work(thread, service, shared, started)
                };
                match thread::Builder::new().name(format!("megapipe-{thread}")).spawn_scoped(scope, body) {
                    Ok(worker) => workers.push(worker),
                    Err(cause) => {
                        result = Err(Cause::Thread { thread, threads: self.threads, cause });
                        break;
                    }
                }
                // Ends when the thread serves, or has ended.
                match start.recv() {
                    Ok(waker) => wakers.push(waker),
                    Err(mpsc::RecvError) => break,
                }
            }
            if wakers.len() == self.threads {
                announce(self.address);
                let mut signals = signals.forever();
                // Both waits also end when no thread is left.
                if signals.next().is_some() {
                    shared.enter(Phase::Drain, &wakers);
                    signals.next();
                }
            }
            shared.enter(Phase::End, &wakers);
            for (thread, worker) in workers.into_iter().enumerate() {
                let ended = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                if let Err(cause) = ended {
                    result = Err(self.failure(thread, cause));
                }
            }
            Ok(result?)
        })
    }

    fn failure(&self, thread: usize, cause: WorkerError) -> Cause {
        match cause {
            WorkerError::Channel(
                error @ (CreateError::UnknownEngine(_)
                | CreateError::Setting { .. }
                | CreateError::RingUnavailable(_)),
            ) => Cause::Channel(error),
            cause => Cause::Worker { thread, threads: self.threads, cause },
        }
    }

    /// The life of one thread.
    fn work<S: Service>(
        &self,
        number: usize,
        service: &S,
        shared: &Shared,
        started: mpsc::SyncSender<Waker>,
    ) -> Result<(), WorkerError> {
        let mask = self.pin(number);
        let config = Config {
            engine: self.engine,
            promotion: self.promotion,
            monitor: self.monitor.clone(),
            // Answers lie in memory of their own, so a queue of them holds up no reader.
            write_queue_max: 4096,
            // One more than may be served: it is told so.
            lwsockets_max: u32::try_from(self.max_connections).unwrap_or(u32::MAX).saturating_add(1),
            ..Config::default()
        };
        let place = match &self.place {
            Place::Kernel(socket) => worker::Place::Kernel(socket.as_fd(), &mask),
            Place::Stack(network, queues) => {
                let queue = queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let none_left = || AttachError::from(io::Error::other("each queue has had its thread"));
                let stack = self.stack(queue.ok_or_else(none_left)?, network);
                worker::Place::Stack(Box::new(stack), self.address)
            }
        };
        let mut worker = Worker::new(config, place, number, service, shared)?;
        // The one who started it waits for this.
        let _ = started.send(worker.waker());
        drop(started);
        let result = worker.run();
        if self.stats {
            // Nobody may read it any more.
            let _ = writeln!(io::stdout(), "thread {number}: {:?}", worker.stats());
        }
        if let Err(error) = &result {
            tracing::error!(thread = number, %error, "a serving thread ends; the others go on");
        }
        result
    }

    /// A stack with room for all connections of the server: any of them may get most.
    fn stack(&self, queue: Queue, network: &TunNetwork) -> Stack {
        let mut stack = Stack::on_queue(queue, network.networks().to_vec());
        let limits = &mut stack.config().limits;
        // One more than may be served: it is told so.
        limits.flows = self.max_connections + 1;
        limits.active = limits.flows.min(ACTIVE_MAX);
        stack
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

/// Takes the address that was asked for, of the kernel or of a stack.
fn place<const PORT: u16>(
    arguments: &ServerArguments<PORT>,
    threads: usize,
) -> Result<(Place, SocketAddr), Cause> {
    let Some(network) = &arguments.stack else {
        let address = arguments.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        let (socket, address) = address::bind(address)?;
        return Ok((Place::Kernel(socket), address));
    };
    let own = network.networks().iter().map(|network| network.address);
    let address = arguments.listen.or_else(|| own.clone().next().map(|own| (own, PORT).into()));
    let address = address.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    if address.port() == 0 || !own.clone().any(|own| own == address.ip()) {
        return Err(Cause::NotOfStack { address, stack: network.clone() });
    }
    let queues = network.open_queues(threads)?;
    Ok((Place::Stack(network.clone(), Mutex::new(queues)), address))
}

fn listen_help(port: u16) -> String {
    format!(
        "Address to listen on; port 0 takes a free one [default: 127.0.0.1:{port}, or port {port} of the stack]"
    )
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

/// A number of at least 1.
fn parse_count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "a whole number from 1 up is needed, such as 4".to_owned())
}

fn parse_idle_timeout(text: &str) -> Result<Duration, String> {
    match parse_seconds(text) {
        Some(timeout) if timeout.is_zero() || timeout >= Duration::from_millis(100) => Ok(timeout),
        _ => Err("a number of seconds from 0.1 up is needed, such as 60, or 0 for no timeout".to_owned()),
    }
}

fn parse_drain_timeout(text: &str) -> Result<Duration, String> {
    parse_seconds(text)
        .ok_or_else(|| "a number of seconds is needed, such as 5, or 0 to end at once".to_owned())
}

/// A number of seconds, perhaps with a fraction, up to a year.
fn parse_seconds(text: &str) -> Option<Duration> {
    let timeout = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (timeout <= YEAR).then_some(timeout)
}

fn allowed_cpus() -> Result<Vec<usize>, ServerError> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| Cause::Affinity(error.into()))?;
    Ok((0..Affinity::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Tells whoever started the server that it serves. That nobody reads it is no reason to end.
fn announce(address: SocketAddr) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "listening on {address}").and_then(|()| stdout.flush());
}
