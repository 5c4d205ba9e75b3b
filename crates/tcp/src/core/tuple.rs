//! The two addresses and ports of a flow.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses and ports of both endpoints. IPv4 addresses are kept as IPv4-mapped ones
/// (RFC 4291, 2.5.5.2), so that one index serves both.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    local: [u8; 16],
    remote: [u8; 16],
    local_port: u16,
    remote_port: u16,
}

impl Tuple {
    /// From here to there.
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Tuple {
        Tuple::between((local.ip(), local.port()), (remote.ip(), remote.port()))
    }

    /// The same, of parts.
    pub(crate) fn between(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Tuple {
        Tuple { local: octets(local.0), remote: octets(remote.0), local_port: local.1, remote_port: remote.1 }
    }

    /// This endpoint.
    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(address(self.local), self.local_port)
    }

    /// The peer.
    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(address(self.remote), self.remote_port)
    }

    /// Whether the packets are IPv6.
    pub(crate) fn is_v6(&self) -> bool {
        self.local[..12] != MAPPED
    }

    /// Addresses of this endpoint and of the peer.
    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        (address(self.local), address(self.remote))
    }

    /// Ports of this endpoint and of the peer.
    pub(crate) fn ports(&self) -> (u16, u16) {
        (self.local_port, self.remote_port)
    }

    /// The same of an IPv4 flow, without what all of them have in common.
    pub(crate) fn bytes_v4(&self) -> Option<[u8; 12]> {
        (!self.is_v6()).then(|| {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&self.local[12..]);
            bytes[4..8].copy_from_slice(&self.remote[12..]);
            bytes[8..10].copy_from_slice(&self.local_port.to_be_bytes());
            bytes[10..].copy_from_slice(&self.remote_port.to_be_bytes());
            bytes
        })
    }

    pub(crate) fn bytes(&self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&self.local);
        bytes[16..32].copy_from_slice(&self.remote);
        bytes[32..34].copy_from_slice(&self.local_port.to_be_bytes());
        bytes[34..].copy_from_slice(&self.remote_port.to_be_bytes());
        bytes
    }
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    let [.., a, b, c, d] = octets;
    // As Ipv6Addr::to_canonical, which compares byte by byte.
    if octets[..12] == MAPPED { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(octets).into() }
}

impl std::fmt::Debug for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} <> {}", self.local(), self.remote())
    }
}
