//! The client: kernel sockets, driven by a thread of its own on each of its CPUs.

use std::net::SocketAddr;
use std::time::Duration;

use super::SIZE;
use super::bulk::{Bulk, Direction};
use crate::child::Failure;
use crate::cpu::CpuSet;
use crate::load::{Connections, Engine, Load, LoadError, Options, Request, Target};

/// What one thread of the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// So many connections at once, each for one request and its answer.
    Short { at_once: usize },
    /// So many connections, of which so many have a request under way.
    Echo { connections: usize, active: usize },
    /// One connection.
    Bulk(Direction),
}

/// At work, until it is dropped.
pub(super) enum Client {
    Requests(Load),
    Bulk(Bulk),
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Failure::Because(crate::with_causes(&error))
    }
}

impl Client {
    /// Begins the work once on each of the CPUs.
    pub(super) fn start(target: SocketAddr, work: Work, cpus: &CpuSet) -> Result<Self, Failure> {
        let (lifetime, connections, active) = match work {
            Work::Short { at_once } => (Connections::Short, at_once, at_once),
            Work::Echo { connections, active } => (Connections::Kept, connections, active),
            Work::Bulk(direction) => {
                return Ok(Client::Bulk(Bulk::start(target, direction, cpus.as_slice()[0])?));
            }
        };
        let options = Options {
            engine: Engine::Epoll,
            target: Target::Tcp(target),
            request: Request::Echo(SIZE),
            instead: None,
            lifetime,
            connections: connections * cpus.len(),
            active: active * cpus.len(),
            rate: None,
            spin: false,
            // Latencies are not reported.
            warm_up: Duration::ZERO,
            window: Duration::ZERO,
        };
        Ok(Client::Requests(Load::start(&options, cpus)?))
    }

    /// Transactions, or bytes, so far.
    pub(super) fn done(&self) -> Result<u64, Failure> {
        match self {
            Client::Requests(load) => Ok(load.sample()?.transactions),
            Client::Bulk(bulk) => Ok(bulk.bytes()),
        }
    }

    /// Connections that failed so far.
    pub(super) fn failures(&self) -> Result<u64, Failure> {
        match self {
            Client::Requests(load) => Ok(load.sample()?.failures),
            Client::Bulk(_) => Ok(0),
        }
    }

    /// Whether no thread has ended by itself.
    pub(super) fn is_running(&self) -> bool {
        match self {
            Client::Requests(load) => !load.is_broken(),
            Client::Bulk(bulk) => bulk.is_running(),
        }
    }

    /// CPU time of all its threads.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        match self {
            Client::Requests(load) => Ok(load.sample()?.cpu),
            Client::Bulk(bulk) => Ok(bulk.cpu()?),
        }
    }

    /// Why a thread has ended by itself, if one has.
    pub(super) fn stop(self) -> Result<(), Failure> {
        match self {
            Client::Requests(load) => Ok(load.stop().map(drop)?),
            Client::Bulk(bulk) => Ok(bulk.stop()?),
        }
    }
}
