//! A server as a whole: its arguments, its address, and its threads.

use std::io::{self, IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context as _, ensure};
use clap::Args;
use megapipe::TunNetwork;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::level_filters::LevelFilter;

use crate::Service;
use crate::worker::{Place, Worker};

/// Arguments of every server.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// Address to listen on; port 0 takes a free one [default: the protocol's port at
    /// 127.0.0.1, or of the stack]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Serve from a TCP of the server's own, in user space (experimental): on a new TUN
    /// device of this name, at this address, for the clients in its prefix. The kernel's
    /// end of the device gets the first other address
    #[arg(long, value_name = "tun:NAME,ADDRESS/PREFIX")]
    stack: Option<TunNetwork>,
    /// Threads, each with a channel and a listener of its own [default: one for each CPU]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Connections that may be open at once
    #[arg(long, value_name = "N", default_value = "16384")]
    max_connections: NonZeroUsize,
}

impl ServerArguments {
    /// Threads that will serve.
    pub fn threads(&self) -> usize {
        self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }
}

/// What the threads of a server share.
pub(crate) struct Shared<S> {
    pub(crate) service: S,
    pub(crate) max_connections: usize,
    /// Connections open in all threads.
    pub(crate) open: AtomicUsize,
    /// Bytes of input that all connections hold.
    pub(crate) held: AtomicUsize,
}

/// Serves until SIGINT or SIGTERM. The level of the log on stderr is in `MEGAPIPE_LOG`.
///
/// # Errors
///
/// Why the server cannot start, or why a thread of it cannot go on.
pub fn serve<S: Service>(arguments: &ServerArguments, port: u16, service: S) -> anyhow::Result<()> {
    let level = std::env::var("MEGAPIPE_LOG").ok().filter(|level| !level.is_empty());
    let level = level.and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt().with_max_level(level.unwrap_or(LevelFilter::WARN));
    log.with_writer(io::stderr).with_ansi(io::stderr().is_terminal()).init();

    let (places, address) = places(arguments, port)?;
    let max_connections = arguments.max_connections.get();
    let (open, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let shared = Arc::new(Shared { service, max_connections, open, held });
    // Each thread reports that it serves, and then how it ended.
    let (report, reports) = mpsc::channel();
    let threads = places.len();
    for (number, place) in places.into_iter().enumerate() {
        let (shared, report) = (shared.clone(), report.clone());
        let serve = move || {
            let ended = Worker::new(place, shared).and_then(|mut worker| {
                report.send(Ok(()))?;
                worker.run()
            });
            // Refused if another thread has failed: the process ends then.
            let _ = report.send(ended.with_context(|| format!("thread {number} of {threads}")));
        };
        thread::Builder::new()
            .name(format!("megapipe-{number}"))
            .spawn(serve)
            .context("cannot start a thread")?;
    }
    drop(report);
    for started in reports.iter().take(threads) {
        started?;
    }
    // That nobody reads it is no reason to end.
    let _ = writeln!(io::stdout(), "listening on {address}");
    reports.iter().collect()
}

/// Where each thread listens, and the address with the port that was taken.
fn places(arguments: &ServerArguments, port: u16) -> anyhow::Result<(Vec<Place>, SocketAddr)> {
    let threads = arguments.threads();
    let Some(network) = &arguments.stack else {
        let address = arguments.listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let sockets = bind(address, threads).with_context(|| format!("cannot listen on {address}"))?;
        let address = sockets[0].local_addr()?.as_socket().unwrap_or(address);
        return Ok((sockets.into_iter().map(Place::Kernel).collect(), address));
    };
    let own: Vec<_> = network.networks().iter().map(|network| network.address).collect();
    let address = arguments.listen.unwrap_or(SocketAddr::from((own[0], port)));
    let is_own = address.port() != 0 && own.contains(&address.ip());
    ensure!(
        is_own,
        "{address} is no address of the stack, or has no port: give --listen one of {network}, and a port"
    );
    // One more than may be served: it gets the refusal.
    let connections = arguments.max_connections.get() + 1;
    let queues = network.open_queues(threads)?.into_iter();
    let place = |queue| Place::Stack { queue, network: network.clone(), address, connections };
    Ok((queues.map(place).collect(), address))
}

/// A bound socket for each thread, all of them the same: the thread's listener gets its
/// address from it.
fn bind(address: SocketAddr, threads: usize) -> io::Result<Vec<Socket>> {
    let open = || Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let socket = open()?;
    // A port that we choose is used again in spite of old connections in TIME_WAIT. One
    // that the kernel chooses must not be given to others with this option, as long as
    // nobody listens on it.
    if address.port() != 0 {
        // Fails, without SO_REUSEPORT, if another server listens there, even one that
        // would share the port with us.
        let probe = open()?;
        probe.set_reuse_address(true)?;
        probe.bind(&address.into())?;
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    (0..threads).map(|_| socket.try_clone()).collect()
}
