//! SYNs from nobody, as in a flood.

use packet::{Random, Sum, pseudo_header};

/// From 10.200.0.0/16, a port from 16,384 on, to the server.
const SYN: [u8; 40] = [
    0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 200, 0, 0, 10, 0, 0, 2, 0x40, 9, 0, 7, 0, 0, 0, 0, 0, 0,
    0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0,
];

pub(crate) fn syn(random: &mut Random) -> [u8; 40] {
    let bytes = random.next_u64().to_be_bytes();
    let mut packet = SYN;
    packet[14..16].copy_from_slice(&bytes[..2]);
    packet[20] |= bytes[2] & 0x3f;
    packet[24..28].copy_from_slice(&bytes[3..7]);
    let sum = Sum::default().with(&packet[..20]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let sum = pseudo_header(&packet[12..16], &packet[16..20], 6, 20).with(&packet[20..]).finish();
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}
