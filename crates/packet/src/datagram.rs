//! UDP beside a TCP: datagrams as the program reads and writes them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use crate::pump::Endpoint;
use crate::{Batch, Frame, Offload, Protocol, Sum, View, pseudo_header};

/// A datagram (RFC 768).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
    /// What it carries.
    pub payload: Vec<u8>,
}

/// Length of a UDP header.
const HEADER: usize = 8;

/// Time to live, or hop limit, of what is written.
const HOPS: u8 = 64;

impl Datagram {
    /// Reads a packet. `None` for what is no whole datagram, and for fragments. The checksum is not verified:
    /// [`Checksum`](crate::Checksum) says whether it is in the packet at all.
    pub fn of(packet: &[u8]) -> Option<Datagram> {
        let view = View::of(packet).filter(|view| view.protocol == Protocol::UDP)?;
        let (header, rest) = packet.get(view.transport..view.end)?.split_first_chunk::<HEADER>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let payload = rest.get(..usize::from(word(4)).checked_sub(HEADER)?)?.to_vec();
        let (source, destination) = view.addresses(packet);
        let address = |octets: &[u8]| match octets.first_chunk::<16>() {
            Some(octets) => Some(IpAddr::from(*octets)),
            None => octets.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        };
        Some(Datagram {
            source: SocketAddr::new(address(source)?, word(0)),
            destination: SocketAddr::new(address(destination)?, word(2)),
            payload,
        })
    }

    /// The packet, with checksums. `None` if the addresses are of different families, or the payload is too
    /// long for a packet.
    pub fn packet(&self) -> Option<Vec<u8>> {
        let len = HEADER + self.payload.len();
        let mut packet = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let [high, low] = u16::try_from(20 + len).ok()?.to_be_bytes();
                // Not fragmented, so that it needs no identification (RFC 6864, 4.1).
                let mut header = vec![0x45, 0, high, low, 0, 0, 0x40, 0, HOPS, Protocol::UDP.0, 0, 0];
                header.extend(source.octets().into_iter().chain(destination.octets()));
                let sum = Sum::default().with(&header).finish();
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let [high, low] = u16::try_from(len).ok()?.to_be_bytes();
                let mut header = vec![0x60, 0, 0, 0, high, low, Protocol::UDP.0, HOPS];
                header.extend(source.octets().into_iter().chain(destination.octets()));
                header
            }
            _ => return None,
        };
        let transport = packet.len();
        for word in [self.source.port(), self.destination.port(), len as u16, 0] {
            packet.extend(word.to_be_bytes());
        }
        packet.extend(&self.payload);
        let (source, destination) = match transport {
            20 => (&packet[12..16], &packet[16..20]),
            _ => (&packet[8..24], &packet[24..40]),
        };
        let sum =
            pseudo_header(source, destination, Protocol::UDP.0, len).with(&packet[transport..]).finish();
        // A sum of 0 would mean that there is none (RFC 768).
        let sum = if sum == 0 { u16::MAX } else { sum };
        packet[transport + 6..transport + 8].copy_from_slice(&sum.to_be_bytes());
        Some(packet)
    }
}

/// Datagrams that wait in each direction at most; further ones are dropped.
pub const DATAGRAMS_MAX: usize = 256;

/// An endpoint, and beside it the datagrams for its addresses: they come to the program, which can answer
/// them, where the endpoint would refuse them.
#[derive(Debug)]
pub struct Datagrams<E> {
    /// What gets everything else.
    pub endpoint: E,
    received: VecDeque<Datagram>,
    to_send: VecDeque<Vec<u8>>,
}

impl<E> Datagrams<E> {
    /// Around this endpoint.
    pub fn beside(endpoint: E) -> Datagrams<E> {
        Datagrams { endpoint, received: VecDeque::new(), to_send: VecDeque::new() }
    }

    /// The next datagram that has arrived.
    pub fn receive(&mut self) -> Option<Datagram> {
        self.received.pop_front()
    }

    /// Has a datagram sent. It is dropped if it makes no packet, or if [`DATAGRAMS_MAX`] wait already.
    pub fn send(&mut self, datagram: &Datagram) {
        if self.to_send.len() < DATAGRAMS_MAX {
            self.to_send.extend(datagram.packet());
        }
    }
}

impl<E: Endpoint> Endpoint for Datagrams<E> {
    type Time = E::Time;

    fn input<'a>(&mut self, now: E::Time, frames: impl Iterator<Item = Frame<'a>>) {
        let received = &mut self.received;
        let others = frames.filter(|frame| match Datagram::of(frame.bytes) {
            Some(datagram) => {
                if received.len() < DATAGRAMS_MAX {
                    received.push_back(datagram);
                }
                false
            }
            None => true,
        });
        self.endpoint.input(now, others);
    }

    fn advance(&mut self, now: E::Time) {
        self.endpoint.advance(now);
    }

    fn deadline(&self) -> Option<E::Time> {
        self.endpoint.deadline()
    }

    fn output(&mut self, now: E::Time, batch: &mut Batch) -> bool {
        while let Some(bytes) = self.to_send.front() {
            if batch.push(Frame { bytes, offload: Offload::default() }).is_err() {
                return true;
            }
            self.to_send.pop_front();
        }
        self.endpoint.output(now, batch)
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

    use super::*;

    /// What another project's builder writes is read, and what is written is what it writes.
    #[test]
    fn packets_are_those_of_another_builder() {
        let v4 = |last, port| SocketAddr::from(([10, 0, 0, last], port));
        let v6 = |last, port| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, last], port));
        for payload in [&b"odd"[..], b"even", b"", &[7; 1400]] {
            for (source, destination) in [(v4(1, 5), v4(2, 53)), (v6(1, 5), v6(2, 53))] {
                let datagram = Datagram { source, destination, payload: payload.to_vec() };
                let packet = datagram.packet().expect("a packet");
                assert_eq!(Datagram::of(&packet), Some(datagram));
                let sliced = SlicedPacket::from_ip(&packet).expect("an IP packet");
                let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no datagram") };
                let mut expected = Vec::new();
                match (source, destination) {
                    (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                        PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), HOPS)
                            .udp(udp.source_port(), udp.destination_port())
                            .write(&mut expected, payload)
                    }
                    (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                        PacketBuilder::ipv6(from.ip().octets(), to.ip().octets(), HOPS)
                            .udp(udp.source_port(), udp.destination_port())
                            .write(&mut expected, payload)
                    }
                    _ => unreachable!("both are of one family"),
                }
                .expect("a packet");
                assert_eq!(packet, expected);
            }
        }
        let mixed = Datagram { source: v4(1, 5), destination: v6(1, 5), payload: Vec::new() };
        assert_eq!(mixed.packet(), None);
        let long = Datagram { source: v4(1, 5), destination: v4(2, 5), payload: vec![0; 65_508] };
        assert_eq!(long.packet(), None);
    }

    /// A length that is not the packet's, and what is cut.
    #[test]
    fn broken_datagrams_are_none() {
        let ends = [SocketAddr::from(([10, 0, 0, 1], 5)), SocketAddr::from(([10, 0, 0, 2], 53))];
        let whole = Datagram { source: ends[0], destination: ends[1], payload: vec![1, 2, 3] };
        let whole = whole.packet().expect("a packet");
        for len in [0, 7, 12, 65_535] {
            let mut packet = whole.clone();
            packet[24..26].copy_from_slice(&u16::to_be_bytes(len));
            assert_eq!(Datagram::of(&packet), None, "length {len}");
        }
        assert!((0..whole.len()).all(|len| Datagram::of(&whole[..len]).is_none()));
    }
}
