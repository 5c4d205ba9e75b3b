//! What carries bytes between the two processes.
//!
//! A transport is a type with [`End`]: the controller makes the descriptors of both ends, each
//! process takes its own over, and from then on sends and receives whole messages. A new one is a
//! file below this module, a variant of [`Transport`] and a line in each `match` of this file.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::names::names;

use super::side::{self, Figures, Task};
use super::{Placement, Scenario};

mod cacheline;
mod copies;
mod pipe;
mod promoted;
mod segment;
mod socket;
mod spin;

pub use cacheline::PAYLOAD as CACHELINE_PAYLOAD;

names! {
    /// A way for bytes between two processes of one host.
    Transport {
        /// A TCP connection between two channels that has moved to shared memory.
        Promoted = "promoted",
        /// TCP over loopback, blocking calls, TCP_NODELAY.
        Tcp = "tcp",
        /// The same with calls that do not block, repeated until they succeed.
        TcpSpin = "tcp-spin",
        /// A UNIX stream socket, blocking calls.
        Unix = "unix",
        /// A pipe for each direction, blocking calls.
        Pipe = "pipe",
        /// Two cache lines of shared memory, one for each direction: the physical limit of a round trip.
        Cacheline = "cacheline",
        /// A copy into shared memory by one core and a copy out of it by another: the physical limit of
        /// a stream.
        Memcpy = "memcpy",
    }
}

/// One end of a connection, in the process that uses it.
pub(super) trait End: Sized {
    /// Makes a connection, in the controller: the descriptors of its two ends.
    fn pair(settings: &Settings) -> io::Result<[Vec<OwnedFd>; 2]>;

    /// Takes over what [`End::pair`] made for this end, in its process.
    fn attach(side: Side, descriptors: Vec<OwnedFd>) -> io::Result<Self>;

    /// Returns when the message's memory is the caller's again. It is on its way then, or goes
    /// with the next [`End::receive`] or [`End::flush`].
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// What was sent is on its way: for who does not go on to receive.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns when `message` is full, with what was sent first.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()>;

    /// As [`End::receive`], for who need not have the bytes in `message`: a transport that
    /// hands out memory of its own with the bytes in it leaves them there.
    #[inline]
    fn take(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.receive(message)
    }
}

/// What a transport may be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// Bytes of the shared buffer of [`Transport::Memcpy`].
    pub(super) ring_bytes: usize,
}

/// Which of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The end that is started first and works until it is ended.
    First,
    /// The end that measures.
    Second,
}

impl Transport {
    /// Whether it can be measured in a scenario at all.
    pub fn takes_part_in(self, scenario: Scenario) -> bool {
        match self {
            Transport::Cacheline => scenario == Scenario::Pingpong,
            Transport::Memcpy => scenario == Scenario::Stream,
            _ => true,
        }
    }

    /// Whether it can be measured with the two processes placed so: a limit is one of two free
    /// cores, and who spins does not sleep.
    pub fn can_be_placed(self, placement: Placement) -> bool {
        match self {
            Transport::Cacheline | Transport::Memcpy => placement == Placement::TwoCores,
            Transport::TcpSpin => placement != Placement::Asleep,
            _ => true,
        }
    }

    /// Whether it carries messages of this size.
    pub fn carries(self, bytes: usize) -> bool {
        self != Transport::Cacheline || bytes <= CACHELINE_PAYLOAD
    }

    pub(super) fn pair(self, settings: &Settings) -> io::Result<[Vec<OwnedFd>; 2]> {
        match self {
            Transport::Promoted => promoted::Promoted::pair(settings),
            Transport::Tcp => socket::Tcp::pair(settings),
            Transport::TcpSpin => socket::TcpSpin::pair(settings),
            Transport::Unix => socket::Unix::pair(settings),
            Transport::Pipe => pipe::Pipe::pair(settings),
            Transport::Cacheline => cacheline::Cacheline::pair(settings),
            Transport::Memcpy => copies::Copies::pair(settings),
        }
    }

    /// Attaches to this transport and works, compiled for it alone: no call goes through a table.
    pub(super) fn work(self, task: &Task, descriptors: Vec<OwnedFd>) -> io::Result<Option<Figures>> {
        match self {
            Transport::Promoted => side::work::<promoted::Promoted>(task, descriptors),
            Transport::Tcp => side::work::<socket::Tcp>(task, descriptors),
            Transport::TcpSpin => side::work::<socket::TcpSpin>(task, descriptors),
            Transport::Unix => side::work::<socket::Unix>(task, descriptors),
            Transport::Pipe => side::work::<pipe::Pipe>(task, descriptors),
            Transport::Cacheline => side::work::<cacheline::Cacheline>(task, descriptors),
            Transport::Memcpy => side::work::<copies::Copies>(task, descriptors),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The descriptors of an end that has so many.
fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> io::Result<[OwnedFd; N]> {
    descriptors.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
}
