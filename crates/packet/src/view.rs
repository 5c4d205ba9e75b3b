//! Where the parts of an IP packet are: enough to cut and join TCP segments.

use crate::checksum::{Sum, pseudo_header};

/// Transport protocols by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP (RFC 792).
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Protocol = Protocol(58);
}

/// Positions in a packet without IPv6 extension headers and without fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// IPv6, else IPv4.
    pub v6: bool,
    /// What follows the IP header.
    pub protocol: Protocol,
    /// Where the transport header begins.
    pub transport: usize,
    /// Where the packet ends by its IP header.
    pub end: usize,
}

impl View {
    /// `None` for what is not a whole IP packet, for fragments and IPv6 extension headers.
    pub fn of(packet: &[u8]) -> Option<View> {
        match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<20>()?;
                let transport = usize::from(header[0] & 15) * 4;
                let end = usize::from(u16::from_be_bytes([header[2], header[3]]));
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
                let fits = transport >= 20 && transport <= end && end <= packet.len();
                (fits && !fragment).then_some(View {
                    v6: false,
                    protocol: Protocol(header[9]),
                    transport,
                    end,
                })
            }
            6 => {
                let header = packet.first_chunk::<40>()?;
                let end = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
                (end <= packet.len()).then_some(View {
                    v6: true,
                    protocol: Protocol(header[6]),
                    transport: 40,
                    end,
                })
            }
            _ => None,
        }
    }

    /// Source and destination address, as they stand in the packet.
    pub fn addresses<'a>(&self, packet: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        if self.v6 { (&packet[8..24], &packet[24..40]) } else { (&packet[12..16], &packet[16..20]) }
    }

    /// Where the payload of a TCP segment begins, if this is a whole one.
    pub fn tcp_payload(&self, packet: &[u8]) -> Option<usize> {
        if self.protocol != Protocol::TCP || self.end < self.transport + 20 {
            return None;
        }
        let header = usize::from(packet[self.transport + 12] >> 4) * 4;
        (header >= 20 && self.transport + header <= self.end).then_some(self.transport + header)
    }

    /// Sum over pseudo-header, transport header and payload.
    pub fn transport_sum(&self, packet: &[u8]) -> Sum {
        let (source, destination) = self.addresses(packet);
        let transport = &packet[self.transport..self.end];
        pseudo_header(source, destination, self.protocol.0, transport.len()).with(transport)
    }

    /// Writes the lengths and the header checksum of an IP packet whose length has changed, and
    /// adds `identification` to an IPv4 packet's.
    pub(crate) fn rewrite_ip(&self, packet: &mut [u8], identification: u16) {
        let len = packet.len();
        if self.v6 {
            packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            return;
        }
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let id = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(identification);
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[10..12].fill(0);
        let sum = Sum::default().with(&packet[..self.transport]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}
