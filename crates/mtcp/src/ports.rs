//! Local ports for connections that a context begins on one of several queues of a device: those
//! whose answers the kernel sends to this queue. What arrived on another one would be reset there.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use packet::steer::queues_of_ports;

use crate::errno::{Errno, open_error};

/// Those that IANA leaves to such connections.
const RANGE: RangeInclusive<u16> = 49_152..=65_535;

/// Peers that ports are known for; beyond it, all are learned anew.
const PEERS_MAX: usize = 64;

pub(crate) struct Ports {
    queue: usize,
    queues: usize,
    pools: HashMap<(IpAddr, SocketAddr), Pool>,
}

/// Ports for one peer, in an order that nobody guesses (RFC 6056).
pub(crate) struct Pool {
    ports: Vec<u16>,
    next: usize,
}

impl Ports {
    pub(crate) fn new(queue: usize, queues: usize) -> Ports {
        Ports { queue, queues, pools: HashMap::new() }
    }

    /// The ports for connections between these. Takes some 100 ms for each peer, once.
    pub(crate) fn pool(&mut self, local: IpAddr, remote: SocketAddr) -> Result<&mut Pool, Errno> {
        let peer = (local, remote);
        if !self.pools.contains_key(&peer) {
            if self.pools.len() >= PEERS_MAX {
                self.pools.clear();
            }
            let found = queues_of_ports(self.queues, local, remote, RANGE).map_err(open_error)?;
            let own = found.into_iter().filter(|&(_, queue)| queue == self.queue);
            let mut ports: Vec<u16> = own.map(|(port, _)| port).collect();
            shuffle(&mut ports)?;
            self.pools.insert(peer, Pool { ports, next: 0 });
        }
        self.pools.get_mut(&peer).ok_or(Errno(libc::ENOMEM))
    }
}

impl Pool {
    /// Each port once, beginning behind the last one that was tried.
    pub(crate) fn candidates(&mut self) -> impl Iterator<Item = u16> {
        (0..self.ports.len()).map(|_| {
            self.next = (self.next + 1) % self.ports.len();
            self.ports[self.next]
        })
    }
}

fn shuffle(ports: &mut [u16]) -> Result<(), Errno> {
    let mut random = vec![0; ports.len() * 4];
    sys::random::fill(&mut random)?;
    for (at, bytes) in random.chunks_exact(4).enumerate() {
        let number = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        ports.swap(at, number as usize % (at + 1));
    }
    Ok(())
}
