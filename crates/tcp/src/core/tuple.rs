//! The two addresses and ports of a flow.

use std::net::SocketAddr;

use super::address::Address;

/// Addresses and ports of both endpoints.
#[derive(Clone, Copy)]
pub(crate) struct Tuple {
    local: Address,
    remote: Address,
    local_port: u16,
    remote_port: u16,
}

impl Tuple {
    /// From here to there.
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Tuple {
        Tuple::between((local.ip().into(), local.port()), (remote.ip().into(), remote.port()))
    }

    /// The same, of parts.
    #[inline]
    pub(crate) fn between(local: (Address, u16), remote: (Address, u16)) -> Tuple {
        Tuple { local: local.0, remote: remote.0, local_port: local.1, remote_port: remote.1 }
    }

    /// This endpoint.
    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local.into(), self.local_port)
    }

    /// The peer.
    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote.into(), self.remote_port)
    }

    /// Whether the packets are IPv6.
    pub(crate) fn is_v6(&self) -> bool {
        !self.local.is_v4()
    }

    /// Addresses of this endpoint and of the peer.
    pub(crate) fn addresses(&self) -> (Address, Address) {
        (self.local, self.remote)
    }

    /// Ports of this endpoint and of the peer.
    pub(crate) fn ports(&self) -> (u16, u16) {
        (self.local_port, self.remote_port)
    }

    /// The same of an IPv4 flow, without what all of them have in common.
    pub(crate) fn bytes_v4(&self) -> Option<[u8; 12]> {
        let (local, remote) = (self.local.v4()?, self.remote.v4()?);
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&local.to_be_bytes());
        bytes[4..8].copy_from_slice(&remote.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.local_port.to_be_bytes());
        bytes[10..].copy_from_slice(&self.remote_port.to_be_bytes());
        Some(bytes)
    }

    pub(crate) fn bytes(&self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&self.local.octets());
        bytes[16..32].copy_from_slice(&self.remote.octets());
        bytes[32..34].copy_from_slice(&self.local_port.to_be_bytes());
        bytes[34..].copy_from_slice(&self.remote_port.to_be_bytes());
        bytes
    }
}

impl PartialEq for Tuple {
    #[inline]
    fn eq(&self, other: &Tuple) -> bool {
        let ports = (self.local_port == other.local_port) & (self.remote_port == other.remote_port);
        ports & (self.remote == other.remote) & (self.local == other.local)
    }
}

impl std::fmt::Debug for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} <> {}", self.local(), self.remote())
    }
}
