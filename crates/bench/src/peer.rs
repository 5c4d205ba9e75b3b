//! The server side: a child process that runs one engine and nothing else.
//!
//! The first server CPU is served by the main thread: with one CPU the process has a single
//! thread, so the kernel takes its cheap path to descriptors (no reference count on each call),
//! as it would for a good single-threaded server.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use ::megapipe::EngineKind;

use crate::cpu::{self, CpuSet};
use crate::engine::Engine;
use crate::part::{self, Part};
use crate::{Reason, failed};

mod epoll;
#[cfg(any(libevent, libuv))]
mod foreign;
pub(crate) mod megapipe;
#[cfg(feature = "peers")]
mod runtimes;
mod uring_plain;

/// What a server process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// The implementation to run.
    pub engine: Engine,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Bytes of a request, and of its response.
    pub size: usize,
    /// Concurrent connections to expect; tables are sized by it.
    pub connections: usize,
    /// One thread is pinned to each of these.
    pub cpus: CpuSet,
}

impl Part for Options {
    const NAME: &'static str = "peer";

    fn run(self) -> Result<(), Reason> {
        match serve(&self)? {}
    }
}

/// Serves until the process is ended.
///
/// Prints `listening PORT` once every thread is ready to serve.
pub fn serve(options: &Options) -> Result<Infallible, Reason> {
    let cpus = options.cpus.as_slice();
    let (port, listeners) =
        listen(options).map_err(failed(format!("cannot listen on {}", options.listen)))?;
    let waiting = Arc::new(AtomicUsize::new(cpus.len()));
    let mut workers = listeners.into_iter().zip(cpus).map(|(listener, &cpu)| {
        let (options, waiting) = (options.clone(), waiting.clone());
        Worker { listener, cpu, port, options, waiting }
    });
    let first = workers.next().ok_or("a server takes a CPU")?;
    for worker in workers {
        part::start_thread("worker", move || match worker.run()? {})?;
    }
    first.run()
}

/// One thread of a server.
struct Worker {
    listener: TcpListener,
    cpu: usize,
    port: u16,
    options: Options,
    waiting: Arc<AtomicUsize>,
}

impl Worker {
    fn run(self) -> Result<Infallible, Reason> {
        let (cpu, engine) = (self.cpu, self.options.engine);
        cpu::pin(&[cpu]).map_err(failed(format!("cannot pin a thread to CPU {cpu}")))?;
        let ended = match engine {
            Engine::MegapipeUring | Engine::MegapipePartitioned => megapipe::run(&self, EngineKind::Uring),
            Engine::MegapipeEpoll => megapipe::run(&self, EngineKind::Epoll),
            Engine::EpollShared | Engine::EpollReuseport => epoll::run(&self),
            Engine::UringPlain => uring_plain::run(&self),
            #[cfg(feature = "peers")]
            Engine::Tokio => runtimes::tokio(&self),
            #[cfg(feature = "peers")]
            Engine::Monoio => runtimes::monoio(&self),
            #[cfg(libevent)]
            Engine::Libevent => foreign::libevent(&self),
            #[cfg(libuv)]
            Engine::Libuv => foreign::libuv(&self),
            engine if engine.is_peer() && cfg!(feature = "peers") => return Err(NO_LIBRARY.into()),
            _ => return Err(NO_PEERS.into()),
        };
        ended.map_err(failed("cannot serve"))
    }

    /// The one answer to every request, for the life of the process as static data of a server is.
    fn response(&self) -> &'static [u8] {
        vec![0; self.options.size].leak()
    }

    /// Called by the engine once it would serve; the last of all threads announces the port.
    fn ready(&self) {
        if self.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            part::listening(self.port);
        }
    }
}

/// How much of the current request has arrived on a connection.
#[derive(Debug, Default, Clone, Copy)]
struct Arrived(usize);

impl Arrived {
    /// Adds `bytes` and takes out whole messages of `size` bytes; returns how many.
    fn whole_messages(&mut self, bytes: usize, size: usize) -> usize {
        let total = self.0 + bytes;
        if total < size {
            self.0 = total;
            0
        } else {
            self.0 = total % size;
            total / size
        }
    }
}

/// One listening socket per CPU, or one shared by all; and their port.
fn listen(options: &Options) -> io::Result<(u16, Vec<TcpListener>)> {
    let threads = options.cpus.len();
    let mut address = options.listen;
    let first = listener(address, options.engine != Engine::EpollShared)?;
    address.set_port(first.local_addr()?.port());
    let mut listeners = vec![first];
    while listeners.len() < threads {
        listeners.push(match options.engine.shares_listener() {
            true => listeners[0].try_clone()?,
            false => listener(address, true)?,
        });
    }
    Ok((address.port(), listeners))
}

/// A socket that listens and does not wait.
pub(crate) fn listener(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_tcp_nodelay(true)?; // accepted sockets inherit it
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Peers were left out when this program was built.
pub(crate) const NO_PEERS: &str =
    "built without the feature `peers`: cargo build --release -p megapipe-bench --features peers";

/// The engine's C library was not there then.
const NO_LIBRARY: &str = "built without its library: install libevent-dev or libuv1-dev and build again";

/// Every connection of the client may wait at once; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
