//! A server process as its controller sees it.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use crate::child::Child;
use crate::cpu::CpuSet;
use crate::engine::Engine;
use crate::part::Part;
use crate::peer;

/// A running server process; dropping it ends the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program cannot be run.
    #[error("cannot start a server process")]
    Spawn(#[source] io::Error),
    /// It ended before it was ready; its own words.
    #[error("{0}")]
    Refused(String),
}

impl Server {
    /// Starts `program` as a server on a free port of 127.0.0.1 and waits until it serves.
    pub fn start(
        program: &Path,
        engine: Engine,
        size: usize,
        connections: usize,
        cpus: &CpuSet,
    ) -> Result<Self, StartError> {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let options = peer::Options { engine, listen, size, connections, cpus: cpus.clone() };
        let mut command = Part::Peer(options).command(program);
        command.env_remove("MEGAPIPE_ENGINE"); // the engine's name says which one to measure
        let mut child = Child::start(&mut command).map_err(StartError::Spawn)?;
        match announced_port(&mut child) {
            Some(port) => Ok(Self { child, address: (Ipv4Addr::LOCALHOST, port).into() }),
            None => Err(StartError::Refused(last_words(child))),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn announced_port(child: &mut Child) -> Option<u16> {
    let mut line = String::new();
    BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
    line.trim().strip_prefix("listening ")?.parse().ok()
}

/// What a server that gives up printed, in one line.
fn last_words(mut child: Child) -> String {
    drop(child.stdin.take());
    let words = child.complaint();
    match (words, child.wait()) {
        (None, Ok(status)) => format!("the server ended at once: {status}"),
        (words, _) => words.unwrap_or_default(),
    }
}
