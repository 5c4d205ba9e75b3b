//! `struct virtio_net_hdr` of the kernel, which carries offloads over a TUN device.

use crate::view::View;
use crate::{Checksum, Offload};

/// Its length: the kernel's default for IFF_VNET_HDR.
pub(crate) const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The header for a packet that is sent.
pub(crate) fn encode(packet: &[u8], offload: Offload) -> [u8; LEN] {
    let mut header = [0; LEN];
    if let Checksum::Partial { start, field } = offload.checksum {
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&field.to_ne_bytes());
    }
    if let Some(view) = View::of(packet)
        && let Some(payload) = view.tcp_payload(packet)
        && offload.segment > 0
        && view.end - payload > usize::from(offload.segment)
    {
        header[1] = if view.v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        header[2..4].copy_from_slice(&(payload as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&offload.segment.to_ne_bytes());
    }
    header
}

/// What the kernel says of a received packet.
pub(crate) fn decode(header: [u8; LEN]) -> Offload {
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let segment = match header[1] & !GSO_ECN {
        GSO_TCPV4 | GSO_TCPV6 => word(4),
        _ => 0,
    };
    let checksum = if header[0] & NEEDS_CSUM != 0 {
        Checksum::Partial { start: word(6), field: word(8) }
    } else if header[0] & DATA_VALID != 0 {
        Checksum::Verified
    } else {
        Checksum::Complete
    };
    Offload { checksum, segment }
}
