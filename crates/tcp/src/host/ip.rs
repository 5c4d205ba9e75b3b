//! IPv4 and IPv6 headers, read and written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::{Checksum, Frame, Protocol, Sum};

use crate::event::Reason;

/// A received packet, its header checked.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: Protocol,
    /// The whole packet, without what a link layer padded.
    pub(crate) bytes: &'a [u8],
    /// What follows the IP headers.
    pub(crate) payload: &'a [u8],
}

/// Extension headers of a packet, at most.
const EXTENSIONS: usize = 8;

/// Reads a packet. Fragments are refused by name: nothing here reassembles.
#[inline]
pub(crate) fn parse<'a>(frame: &Frame<'a>) -> Result<Packet<'a>, Reason> {
    match frame.bytes.first().ok_or(Reason::Malformed)? >> 4 {
        4 => parse_v4(frame.bytes),
        6 => parse_v6(frame.bytes),
        _ => Err(Reason::Malformed),
    }
}

#[inline]
fn parse_v4(bytes: &[u8]) -> Result<Packet<'_>, Reason> {
    let header = bytes.first_chunk::<20>().ok_or(Reason::Malformed)?;
    let len = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if len < 20 || total < len || total > bytes.len() {
        return Err(Reason::Malformed);
    }
    if !Sum::default().with(header).with(&bytes[20..len]).is_valid() {
        return Err(Reason::Checksum);
    }
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2
    //# When received options are passed up to TCP from the IP layer, a TCP implementation MUST ignore options
    //# that it does not understand (MUST- 50).
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(Reason::Fragment);
    }
    let address =
        |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
    Ok(Packet {
        source: address(12),
        destination: address(16),
        protocol: Protocol(header[9]),
        bytes: &bytes[..total],
        payload: &bytes[len..total],
    })
}

fn parse_v6(bytes: &[u8]) -> Result<Packet<'_>, Reason> {
    let header = bytes.first_chunk::<40>().ok_or(Reason::Malformed)?;
    let end = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let bytes = bytes.get(..end).ok_or(Reason::Malformed)?;
    let mut protocol = header[6];
    let mut at = 40;
    for _ in 0..EXTENSIONS {
        match protocol {
            // Hop-by-hop options, routing, destination options (RFC 8200, 4).
            0 | 43 | 60 => {
                let next = bytes.get(at..at + 8).ok_or(Reason::Malformed)?;
                if protocol == 43 && next[3] != 0 {
                    // We are not the last of the route (RFC 8200, 4.4; RFC 5095).
                    return Err(Reason::Protocol);
                }
                protocol = next[0];
                at += 8 + usize::from(next[1]) * 8;
            }
            44 => return Err(Reason::Fragment),
            _ => {
                let payload = bytes.get(at..).ok_or(Reason::Malformed)?;
                let address = |at: usize| {
                    let octets: [u8; 16] = std::array::from_fn(|i| header[at + i]);
                    IpAddr::V6(Ipv6Addr::from(octets))
                };
                return Ok(Packet {
                    source: address(8),
                    destination: address(24),
                    protocol: Protocol(protocol),
                    bytes,
                    payload,
                });
            }
        }
    }
    Err(Reason::Malformed)
}

/// Whether an address can be that of one host on a network (RFC 9293, MUST-46, MUST-57 and
/// MUST-63; RFC 1122, 3.2.1.3; RFC 4291, 2.5: mapped addresses are not for the wire).
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified() && !v4.is_loopback()
        }
        IpAddr::V6(v6) => {
            !v6.is_multicast() && !v6.is_unspecified() && !v6.is_loopback() && v6.to_ipv4_mapped().is_none()
        }
    }
}

/// The checksum of a transport header and its payload, pseudo-header included.
pub(crate) fn transport_sum(packet: &Packet<'_>) -> Sum {
    pseudo(packet.source, packet.destination, packet.protocol, packet.payload.len()).with(packet.payload)
}

pub(crate) fn checksum_is_valid(packet: &Packet<'_>, state: Checksum) -> bool {
    match state {
        Checksum::Verified | Checksum::Partial { .. } => true,
        Checksum::Complete => transport_sum(packet).is_valid(),
    }
}

pub(crate) fn pseudo(source: IpAddr, destination: IpAddr, protocol: Protocol, len: usize) -> Sum {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet::pseudo_header(&source.octets(), &destination.octets(), protocol.0, len)
        }
        (source, destination) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            packet::pseudo_header(&octets(source), &octets(destination), protocol.0, len)
        }
    }
}

/// Length of the header that [`write`] writes.
pub(crate) fn header_len(source: IpAddr) -> usize {
    if source.is_ipv4() { 20 } else { 40 }
}

/// Writes an IP header in front of `len` bytes. Never fragmented (RFC 1191, 2).
pub(crate) fn write(
    out: &mut [u8],
    source: IpAddr,
    destination: IpAddr,
    protocol: Protocol,
    len: usize,
    identification: u16,
    hops: u8,
) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = ((20 + len) as u16).to_be_bytes();
            let id = identification.to_be_bytes();
            let mut header = [0; 20];
            header[..10]
                .copy_from_slice(&[0x45, 0, total[0], total[1], id[0], id[1], 0x40, 0, hops, protocol.0]);
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            let sum = Sum::default().with(&header).finish();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            out[..20].copy_from_slice(&header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let len = (len as u16).to_be_bytes();
            out[..8].copy_from_slice(&[0x60, 0, 0, 0, len[0], len[1], protocol.0, hops]);
            out[8..24].copy_from_slice(&source.octets());
            out[24..40].copy_from_slice(&destination.octets());
        }
        _ => debug_assert!(false, "addresses of two families"),
    }
}
