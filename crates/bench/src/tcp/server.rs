//! The server side: a child process that runs one server and nothing else.
//!
//! It prints `listening` once it serves. One that needs the other end of a veth pair prints
//! `namespace` before, and goes on when a line comes.

use crate::Reason;
use crate::part::Part;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener};

use megapipe::TunNetwork;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use serde::{Deserialize, Serialize};

#[cfg(feature = "peers")]
use super::foreign;
use super::network::{Network, NetworkError};
use super::{BULK, PORT, SIZE, Service, Side, channel, floor};
use crate::cpu::{self, CpuSet};
use crate::engine::Engine;
use crate::peer;

/// What a server process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Which server.
    pub side: Side,
    /// What it does with its connections.
    pub service: Service,
    /// How many of them to expect.
    pub connections: usize,
    /// The number of its network.
    pub network: u64,
    /// One thread is pinned to each of these.
    pub cpus: CpuSet,
}

impl Part for Task {
    const NAME: &'static str = "tcp-server";

    fn run(self) -> Result<(), Reason> {
        match serve(&self)? {}
    }
}

/// Serves until standard input closes, which ends the process.
fn serve(task: &Task) -> Result<Infallible, Reason> {
    let network = Network::of(task.network);
    let cpus = task.cpus.as_slice();
    cpu::pin(&cpus[..1])?;
    if task.side == Side::Kernel {
        return serve_kernel(task, network);
    }
    let tun: TunNetwork = network.tun().parse()?;
    let address = address(network);
    match (task.side, task.service) {
        (Side::Stack | Side::TwoStacks, service) => {
            let queues = tun.open_queues(cpus.len())?;
            Ok(channel::run(queues, tun.networks(), address, service, task.connections, cpus)?)
        }
        (Side::Floor, Service::Echo) => {
            let tun = tun.open()?;
            peer::end_with_standard_input()?;
            ready();
            Ok(floor::run(tun)?)
        }
        #[cfg(feature = "peers")]
        (Side::Smoltcp, Service::Echo) => {
            peer::end_with_standard_input()?;
            Ok(foreign::run(tun.open()?, address, task.connections)?)
        }
        #[cfg(not(feature = "peers"))]
        (Side::Smoltcp, Service::Echo) => Err(peer::NO_PEERS.into()),
        (side, _) => Err(format!("{side} has no such service").into()),
    }
}

/// Where a server listens.
pub(super) fn address(network: Network) -> SocketAddr {
    SocketAddrV4::new(network.server(), PORT).into()
}

pub(super) fn ready() {
    say("listening");
}

fn say(word: &str) {
    let mut stdout = io::stdout();
    // A controller that is gone closes standard input, too, which ends this process.
    let _ = writeln!(stdout, "{word}");
    let _ = stdout.flush();
}

/// In a namespace of its own: epoll for messages, blocking calls for one stream.
fn serve_kernel(task: &Task, network: Network) -> Result<Infallible, Reason> {
    // SAFETY: the table of descriptors stays shared, which is the only condition.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)?;
    say("namespace");
    io::stdin().read_exact(&mut [0])?;
    network.connected()?;
    let listen = address(network);
    if task.service == Service::Echo {
        let options = peer::Options {
            engine: Engine::EpollShared,
            listen,
            size: SIZE,
            connections: task.connections,
            cpus: task.cpus.clone(),
        };
        return peer::serve(&options);
    }
    peer::end_with_standard_input()?;
    let listener = TcpListener::bind(listen)?;
    ready();
    let mut bytes = vec![b'a'; BULK];
    let (mut stream, _) = listener.accept()?;
    loop {
        match task.service {
            Service::Source => stream.write_all(&bytes)?,
            _ => drop(stream.read(&mut bytes)?),
        }
    }
}
