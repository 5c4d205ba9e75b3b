//! The server side: a child process that runs one server and nothing else.
//!
//! It prints `listening` once it serves.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener};

use megapipe::TunNetwork;

use serde::{Deserialize, Serialize};

#[cfg(feature = "peers")]
use super::foreign;
use super::{BULK, SIZE, Service, Side, channel, floor};
use crate::Reason;
use crate::cpu::{self, CpuSet};
use crate::engine::Engine;
use crate::part::{self, Part};
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
    /// Where it listens.
    pub address: SocketAddrV4,
    /// Its TUN device, as [`TunNetwork`] reads it; the kernel's server has none.
    pub tun: String,
    /// One thread is pinned to each of these.
    pub cpus: CpuSet,
}

impl Part for Task {
    const NAME: &'static str = "tcp-server";

    fn run(self) -> Result<(), Reason> {
        match serve(&self)? {}
    }
}

/// Serves until the process is ended.
fn serve(task: &Task) -> Result<Infallible, Reason> {
    let cpus = task.cpus.as_slice();
    cpu::pin(&cpus[..1])?;
    if task.side == Side::Kernel {
        return serve_kernel(task);
    }
    let tun: TunNetwork = task.tun.parse()?;
    let address = task.address.into();
    match (task.side, task.service) {
        (Side::Stack | Side::TwoStacks, service) => {
            let queues = tun.open_queues(cpus.len())?;
            channel::run(queues, tun.networks(), address, service, task.connections, cpus)
        }
        (Side::Floor, Service::Echo) => {
            let tun = tun.open()?;
            part::listening("");
            Ok(floor::run(tun)?)
        }
        #[cfg(feature = "peers")]
        (Side::Smoltcp, Service::Echo) => Ok(foreign::run(tun.open()?, address, task.connections)?),
        #[cfg(not(feature = "peers"))]
        (Side::Smoltcp, Service::Echo) => Err(peer::NO_PEERS.into()),
        (side, _) => Err(format!("{side} has no such service").into()),
    }
}

/// epoll for messages, blocking calls for one stream.
fn serve_kernel(task: &Task) -> Result<Infallible, Reason> {
    if task.service == Service::Echo {
        let options = peer::Options {
            engine: Engine::EpollShared,
            listen: task.address.into(),
            size: SIZE,
            connections: task.connections,
            cpus: task.cpus.clone(),
        };
        return peer::serve(&options);
    }
    let listener = TcpListener::bind(task.address)?;
    part::listening("");
    let mut bytes = vec![b'a'; BULK];
    let (mut stream, _) = listener.accept()?;
    loop {
        match task.service {
            Service::Source => stream.write_all(&bytes)?,
            _ => drop(stream.read(&mut bytes)?),
        }
    }
}
