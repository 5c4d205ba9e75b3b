//! IPv4 and IPv6 headers, read and written.

use packet::{Checksum, Protocol, Sum};

use crate::core::address::Address;
use crate::core::wire::write_words;
use crate::event::Reason;

/// A received packet, its header checked.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: Protocol,
    /// A router has marked it (RFC 3168, 5: CE).
    pub(crate) marked: bool,
    /// The whole packet, without what a link layer padded.
    pub(crate) bytes: &'a [u8],
    /// What follows the IP headers.
    pub(crate) payload: &'a [u8],
}

/// Extension headers of a packet, at most.
const EXTENSIONS: usize = 8;

/// Reads a packet.
pub(crate) fn parse(bytes: &[u8]) -> Result<Packet<'_>, Reason> {
    match bytes.first().ok_or(Reason::Malformed)? >> 4 {
        4 => parse_v4(bytes),
        6 => parse_v6(bytes),
        _ => Err(Reason::Malformed),
    }
}

/// Reads an IPv4 packet. Fragments are refused by name: nothing here reassembles.
#[inline]
pub(crate) fn parse_v4(bytes: &[u8]) -> Result<Packet<'_>, Reason> {
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
    let address = |at: usize| Address::of_v4([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    Ok(Packet {
        source: address(12),
        destination: address(16),
        protocol: Protocol(header[9]),
        marked: header[1] & 3 == 3,
        bytes: &bytes[..total],
        payload: &bytes[len..total],
    })
}

/// Reads an IPv6 packet, as far as the transport header.
pub(crate) fn parse_v6(bytes: &[u8]) -> Result<Packet<'_>, Reason> {
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
                let address = |at: usize| Address::of_v6(std::array::from_fn(|i| header[at + i]));
                let (source, destination) = (address(8), address(24));
                if source.is_v4() || destination.is_v4() {
                    // RFC 4291, 2.5: mapped addresses are not for the wire.
                    return Err(Reason::Address);
                }
                let (protocol, marked) = (Protocol(protocol), header[1] >> 4 & 3 == 3);
                return Ok(Packet { source, destination, protocol, marked, bytes, payload });
            }
        }
    }
    Err(Reason::Malformed)
}

/// The checksum of a transport header and its payload, pseudo-header included.
#[inline]
pub(crate) fn transport_sum(packet: &Packet<'_>) -> Sum {
    pseudo(packet.source, packet.destination, packet.protocol, packet.payload.len()).with(packet.payload)
}

#[inline]
pub(crate) fn checksum_is_valid(packet: &Packet<'_>, state: Checksum) -> bool {
    match state {
        Checksum::Verified | Checksum::Partial { .. } => true,
        Checksum::Complete => transport_sum(packet).is_valid(),
    }
}

/// The sum of the pseudo-header.
#[inline]
pub(crate) fn pseudo(source: Address, destination: Address, protocol: Protocol, len: usize) -> Sum {
    // Protocol and length are 16-bit words of their own, and so is their sum.
    let tail = len as u32 + u32::from(protocol.0);
    match source.v4_with(destination) {
        Some((source, destination)) => Sum::default().with_words([source, destination, tail]),
        None => Sum::default().with(&source.octets()).with(&destination.octets()).with_words([tail]),
    }
}

/// Length of the header that [`write`] writes.
#[inline]
pub(crate) fn header_len(source: Address) -> usize {
    if source.is_v4() { 20 } else { 40 }
}

/// Writes an IP header in front of `len` bytes. Never fragmented (RFC 1191, 2).
#[inline]
pub(crate) fn write(
    out: &mut [u8],
    source: Address,
    destination: Address,
    protocol: Protocol,
    len: usize,
    (class, hops): (u8, u8),
) {
    let kind = u32::from(protocol.0);
    match source.v4_with(destination) {
        Some((source, destination)) => {
            let mut words = [
                0x4500_0000 | u32::from(class) << 16 | (20 + len as u32),
                // Not fragmented, so that it needs no identification (RFC 6864, 4.1): a counter would
                // show one peer how much is sent to others.
                0x4000,
                u32::from(hops) << 24 | kind << 16,
                source,
                destination,
            ];
            words[2] |= u32::from(Sum::default().with_words(words).finish());
            write_words(out, words);
        }
        None => {
            let class = u32::from(class) << 20;
            write_words(out, [0x6000_0000 | class, (len as u32) << 16 | kind << 8 | u32::from(hops)]);
            out[8..24].copy_from_slice(&source.octets());
            out[24..40].copy_from_slice(&destination.octets());
        }
    }
}
