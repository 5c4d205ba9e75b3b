//! A server process as its controller sees it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use crate::child::Served;
use crate::cpu::CpuSet;
use crate::engine::Engine;
use crate::part::Part;
use crate::peer;

/// A running server process; dropping it ends the process.
#[derive(Debug)]
pub struct Server {
    child: Served,
    address: SocketAddr,
}

impl Server {
    /// Starts `program` as a server on a free port of 127.0.0.1 and waits until it serves.
    pub fn start(
        program: &Path,
        engine: Engine,
        size: usize,
        connections: usize,
        cpus: &CpuSet,
    ) -> io::Result<Self> {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let options = peer::Options { engine, listen, size, connections, cpus: cpus.clone() };
        let mut command = options.command(program);
        command.env_remove("MEGAPIPE_ENGINE"); // the engine's name says which one to measure
        let mut child = Served::start(&mut command)?;
        let line = child.line()?;
        let port = line.strip_prefix("listening ").and_then(|port| port.parse().ok());
        let port: u16 = port.ok_or_else(|| io::Error::other(format!("the server said {line:?}")))?;
        Ok(Self { child, address: (Ipv4Addr::LOCALHOST, port).into() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}
