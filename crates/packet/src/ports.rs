//! Local ports whose answers the kernel sends to the queue that a stack has of a TUN device.
//!
//! The kernel sends a flow to the queue that has last sent packets of it. For one that is new, or
//! was silent for some seconds, it chooses by a hash with a secret key. But the choice
//! depends on nothing else than addresses, ports and the number of queues: packets of the flow that
//! are sent through a device of our own show it. The answer to a SYN comes before the kernel knows
//! who has sent it, so a stack connects from a port whose flow goes to its own queue anyway.
//!
//! Stacks of one device have one address. Two connections from one port to one peer would
//! reset each other, so each port is one stack's alone, also where queues cannot be
//! learned.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::tun::{OpenError, Tun};
use crate::{Batch, Device, sys};

/// The dynamic ports (RFC 6335, 6; RFC 6056, 3.2).
const FIRST: u64 = 49_152;
const PORTS: u64 = 16_384;

/// Ports whose queues are learned at once: about 1 ms.
const CHUNK: u64 = 512;

/// Packets that are sent before they are received: a queue of the device holds 500.
const BURST: usize = 128;

/// Peers whose ports are kept; at one more, all are learned anew.
const PEERS_MAX: usize = 1024;

/// An address of ours, and the socket that is connected to.
type Pair = (IpAddr, SocketAddr);

/// Why no ports can be learned.
#[derive(Debug)]
pub struct LearnError(OpenError);

impl fmt::Display for LearnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the ports of connections are not chosen by queue, so answers may come to the queue of another thread, \
             which passes them on ({}); this takes CAP_NET_ADMIN and CAP_NET_RAW in the network namespace",
            self.0
        )
    }
}

impl std::error::Error for LearnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl<E: Into<OpenError>> From<E> for LearnError {
    fn from(cause: E) -> LearnError {
        LearnError(cause.into())
    }
}

/// Local ports for the stack on one of the queues of a device: those whose answers the kernel sends
/// to this queue. What is learned is shared by the stacks of the device. No port is two
/// stacks' for one peer.
///
/// Learning makes a second TUN device, which stays until all `Ports` and queues are gone. It needs
/// what Linux asks for packet sockets (CAP_NET_RAW); a user who may make a device in a
/// user namespace has it there.
pub struct Ports {
    queue: usize,
    table: Arc<Table>,
    pools: BTreeMap<Pair, Pool>,
}

/// Ports of one stack for one peer.
#[derive(Default)]
struct Pool {
    ports: Vec<u16>,
    /// The place of the next one to be tried.
    next: usize,
    /// What was read of the table's list.
    read: usize,
}

impl Ports {
    pub(crate) fn new(queue: usize, table: Arc<Table>) -> Ports {
        Ports { queue, table, pools: BTreeMap::new() }
    }

    /// Calls `take` with one port after the other for a connection between these, until it returns
    /// something. None when it has refused every port.
    ///
    /// It begins behind the port that it returned last. The order is another one for each peer, and
    /// secret (RFC 6056, 3.3.3).
    ///
    /// # Errors
    ///
    /// More ports are needed, and their queues cannot be learned.
    pub fn find<T>(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        mut take: impl FnMut(u16) -> Option<T>,
    ) -> Result<Option<T>, LearnError> {
        let pair = (local, remote);
        if self.pools.len() >= PEERS_MAX && !self.pools.contains_key(&pair) {
            self.pools.clear();
        }
        let pool = self.pools.entry(pair).or_default();
        for _ in 0..pool.ports.len() {
            let port = pool.ports[pool.next];
            pool.next = (pool.next + 1) % pool.ports.len();
            if let Some(taken) = take(port) {
                return Ok(Some(taken));
            }
        }
        loop {
            let mut at = pool.ports.len();
            if !self.table.read_more(pair, self.queue, pool)? {
                return Ok(None);
            }
            while let Some(&port) = pool.ports.get(at) {
                at += 1;
                if let Some(taken) = take(port) {
                    pool.next = at % pool.ports.len();
                    return Ok(Some(taken));
                }
            }
        }
    }

    /// As [`find`](Ports::find). Where queues cannot be learned, `report` gets the reason, and from
    /// then on each stack of the device takes an equal share of the further ports.
    pub fn find_any<T>(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        mut take: impl FnMut(u16) -> Option<T>,
        report: impl FnOnce(&LearnError),
    ) -> Option<T> {
        self.find(local, remote, &mut take).unwrap_or_else(|error| {
            report(&error);
            self.table.stop_learning();
            self.find(local, remote, take).ok().flatten()
        })
    }
}

/// What the stacks of one device have learned, and the ports that they share out without.
pub(crate) struct Table {
    queues: usize,
    /// Orders the ports of each peer.
    secret: RandomState,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    /// From the first learning on.
    prober: Option<Prober>,
    /// Further ports are shared out.
    stopped: bool,
    peers: BTreeMap<Pair, Peer>,
}

#[derive(Default)]
struct Peer {
    /// How many ports were probed or shared out; one without an answer is left out of `ports`.
    probed: u64,
    /// Each port with the queue whose stack may take it.
    ports: Vec<(u16, usize)>,
}

impl Table {
    pub(crate) fn new(queues: usize) -> Table {
        Table { queues, secret: RandomState::new(), learned: Mutex::default() }
    }

    /// Gives the pool ports of its queue that it does not have; learns some if there are
    /// none. False when every port was learned.
    fn read_more(&self, pair: Pair, queue: usize, pool: &mut Pool) -> Result<bool, LearnError> {
        let mut learned = self.lock();
        let Learned { prober, stopped, peers } = &mut *learned;
        if peers.len() >= PEERS_MAX && !peers.contains_key(&pair) {
            peers.clear();
        }
        let peer = peers.entry(pair).or_default();
        if peer.ports.len() <= pool.read {
            if peer.probed >= PORTS {
                return Ok(false);
            }
            let order = self.secret.hash_one(pair);
            let numbers = peer.probed..peer.probed + CHUNK;
            if *stopped {
                let queues = self.queues as u64;
                peer.ports.extend(numbers.map(|it| (nth_port(order, it), (it % queues) as usize)));
            } else {
                // One that fails is made anew the next time: answers may wait in its queues.
                let mut working = match prober.take() {
                    Some(prober) => prober,
                    None => Prober::new(self.queues)?,
                };
                peer.ports.extend(working.probe(pair, numbers.map(|it| nth_port(order, it)))?);
                *prober = Some(working);
            }
            peer.probed += CHUNK;
        }
        let new = peer.ports.iter().skip(pool.read).filter(|&&(_, of)| of == queue);
        pool.ports.extend(new.map(|&(port, _)| port));
        pool.read = peer.ports.len();
        Ok(true)
    }

    fn stop_learning(&self) {
        self.lock().stopped = true;
    }

    /// Each entry is complete at any time, also where a thread has panicked.
    fn lock(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port in one of many orders, in which each comes once: steps of an odd width around the range,
/// whose size is a power of two.
fn nth_port(order: u64, number: u64) -> u16 {
    let (start, step) = (order >> 32, order | 1);
    (FIRST + start.wrapping_add(step.wrapping_mul(number)) % PORTS) as u16
}

/// A device with as many queues as the one that it stands for.
struct Prober {
    queues: Vec<Tun>,
    v4: sys::PacketSocket,
    v6: sys::PacketSocket,
    batch: Batch,
}

impl Prober {
    fn new(queues: usize) -> Result<Prober, LearnError> {
        let queues = Tun::open_queues("mpsteer%d", 1500, queues)?;
        queues[0].bring_up()?;
        let socket = |v4| sys::PacketSocket::open(queues[0].name(), v4);
        let (v4, v6) = (socket(true)?, socket(false)?);
        Ok(Prober { queues, v4, v6, batch: Batch::new(1 << 18) })
    }

    /// Each port with the queue to which the kernel sends what the peer answers to it.
    fn probe(
        &mut self,
        (local, remote): Pair,
        ports: impl Iterator<Item = u16>,
    ) -> Result<Vec<(u16, usize)>, LearnError> {
        let mut found = Vec::with_capacity(CHUNK as usize);
        let socket = if remote.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut answer = acknowledgement(remote, local);
        let at = answer.len() - TCP_LEN + 2;
        let ports: Vec<u16> = ports.collect();
        for burst in ports.chunks(BURST) {
            for port in burst {
                answer[at..at + 2].copy_from_slice(&port.to_be_bytes());
                socket.send(&answer)?;
            }
            for (number, queue) in self.queues.iter_mut().enumerate() {
                loop {
                    self.batch.clear();
                    if queue.receive(&mut self.batch)? == 0 {
                        break;
                    }
                    let frames = self.batch.frames().map(|frame| frame.bytes);
                    // Others are the kernel's own, such as those that look for routers.
                    let answers =
                        frames.filter(|bytes| bytes.len() == answer.len() && bytes[..at] == answer[..at]);
                    found.extend(
                        answers.map(|bytes| (u16::from_be_bytes([bytes[at], bytes[at + 1]]), number)),
                    );
                }
            }
        }
        Ok(found)
    }
}

/// A TCP header without options.
const TCP_LEN: usize = 20;

/// A TCP segment without data, to port 0. Nobody verifies its checksums.
fn acknowledgement(from: SocketAddr, to: IpAddr) -> Vec<u8> {
    let mut packet = match (from.ip(), to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let mut packet = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
            packet.extend(octets(from));
            packet.extend(octets(to));
            packet
        }
    };
    packet.extend(from.port().to_be_bytes());
    packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    packet
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;
    use std::time::Duration;

    use testkit::netns;
    use testkit::skip::{Skipped, record};

    use super::*;

    /// The last queue fails when the others have shown ports already.
    #[test]
    fn a_probe_that_fails_midway_is_forgotten() {
        const TEST: &str = "ports::tests::a_probe_that_fails_midway_is_forgotten";
        if !netns::enter(TEST, Duration::from_secs(60)) {
            return;
        }
        let table = Table::new(3);
        let pair = (IpAddr::from([10, 77, 0, 2]), SocketAddr::from(([10, 77, 0, 1], 7)));
        let mut pool = Pool::default();
        assert!(table.read_more(pair, 0, &mut pool).expect("packet sockets"));
        let gone = Tun::open("gone0", 1500).expect("a TUN device");
        match Command::new("ip").args(["link", "delete", "gone0"]).status() {
            Ok(status) => assert!(status.success(), "{status}"),
            Err(error) => return record(TEST, &Skipped::because(format!("no ip: {error}"))),
        }
        table.learned.lock().expect("no panic").prober.as_mut().expect("a prober").queues[2] = gone;
        table.read_more(pair, 0, &mut pool).map(drop).expect_err("a queue without a device");
        assert!(table.read_more(pair, 0, &mut pool).expect("packet sockets"));
        let learned = table.learned.lock().expect("no panic");
        let ports = &learned.peers[&pair].ports;
        assert_eq!(ports.len() as u64, 2 * CHUNK);
        let different: BTreeSet<u16> = ports.iter().map(|&(port, _)| port).collect();
        assert_eq!(different.len(), ports.len(), "a port is listed twice");
    }
}
