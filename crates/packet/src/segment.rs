//! Cutting and joining TCP segments, as segmentation offload does it.

use crate::link::Packet;
use crate::view::{Protocol, View};
use crate::{Checksum, Frame, Offload};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The packets that a frame stands for: several where it is to be segmented, with all checksums
/// completed. A frame that is not a TCP segment comes back as it is.
pub fn split(frame: Frame<'_>) -> Vec<Packet> {
    let mut packet = Packet::from(frame);
    let size = usize::from(frame.offload.segment);
    let Some(view) = View::of(frame.bytes) else { return vec![packet] };
    let payload = view.tcp_payload(frame.bytes);
    match payload {
        Some(payload) if size > 0 && view.end - payload > size => {
            let cuts: Vec<usize> = (size..view.end - payload).step_by(size).collect();
            cut(&packet, &cuts)
        }
        _ => {
            complete(&mut packet);
            vec![packet]
        }
    }
}

/// Completes a partial checksum.
pub fn complete(packet: &mut Packet) {
    if let (Checksum::Partial { start, field }, Some(view)) =
        (packet.offload.checksum, View::of(&packet.bytes))
    {
        let at = usize::from(start) + usize::from(field);
        if usize::from(start) == view.transport && at + 2 <= view.end {
            packet.bytes[at..at + 2].fill(0);
            let sum = view.transport_sum(&packet.bytes).finish();
            packet.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
    packet.offload = Offload::default();
}

/// Cuts a TCP segment at these positions of its payload, in rising order. FIN and PSH stay with
/// the last piece, CWR with the first (RFC 3168, 6.1.2).
pub fn cut(packet: &Packet, cuts: &[usize]) -> Vec<Packet> {
    let bytes = &packet.bytes;
    let Some((view, payload)) = View::of(bytes).and_then(|view| Some((view, view.tcp_payload(bytes)?)))
    else {
        return vec![packet.clone()];
    };
    let len = view.end - payload;
    let inner = cuts.iter().copied().filter(|&cut| cut > 0 && cut < len);
    let edges: Vec<usize> = std::iter::once(0).chain(inner).chain([len]).collect();
    let mut pieces = Vec::with_capacity(edges.len());
    for (index, edge) in edges.windows(2).enumerate() {
        let (from, to) = (edge[0], edge[1]);
        let mut piece = bytes[..payload].to_vec();
        piece.extend_from_slice(&bytes[payload + from..payload + to]);
        let flags = view.transport + 13;
        if to < len {
            piece[flags] &= !(FIN | PSH);
        }
        if index > 0 {
            piece[flags] &= !CWR;
        }
        add_to_sequence(&mut piece, view, from as u32);
        pieces.push(seal(piece, view, index as u16));
    }
    pieces
}

/// Joins two TCP segments of which the second follows the first, if that changes nothing for
/// the receiver: same connection, acknowledgement, window and options.
pub fn join(first: &Packet, second: &Packet) -> Option<Packet> {
    let (a, b) = (&first.bytes, &second.bytes);
    let (view, other) = (View::of(a)?, View::of(b)?);
    let (payload, theirs) = (view.tcp_payload(a)?, other.tcp_payload(b)?);
    let (t, u) = (view.transport, other.transport);
    let tcp = (&a[t..payload], &b[u..theirs]);
    let same = view.v6 == other.v6
        && view.addresses(a) == other.addresses(b)
        && tcp.0.len() == tcp.1.len()
        && tcp.0[..4] == tcp.1[..4]
        && tcp.0[8..13] == tcp.1[8..13]
        && tcp.0[14..16] == tcp.1[14..16]
        && tcp.0[20..] == tcp.1[20..];
    let plain = a[t + 13] & !PSH == 0x10 && b[u + 13] & !(PSH | FIN) == 0x10;
    let follows = sequence(a, view).wrapping_add((view.end - payload) as u32) == sequence(b, other);
    let len = view.end + (other.end - theirs);
    if !same || !plain || !follows || view.end == payload || other.end == theirs || len > 65_535 {
        return None;
    }
    let mut joined = a[..view.end].to_vec();
    joined[t + 13] |= b[u + 13];
    joined.extend_from_slice(&b[theirs..other.end]);
    Some(seal(joined, view, 0))
}

/// The second of two consecutive segments with the last `back` payload bytes of the first in
/// front of it.
pub fn overlap(first: &Packet, second: &Packet, back: usize) -> Option<Packet> {
    let joined = join(first, second)?;
    let view = View::of(&first.bytes)?;
    let len = view.end - view.tcp_payload(&first.bytes)?;
    cut(&joined, &[len.saturating_sub(back.min(len - 1).max(1))]).pop()
}

/// Sets the congestion mark (RFC 3168) of a packet that its sender declared capable of it.
pub fn mark_congestion(packet: &mut Packet) {
    let Some(view) = View::of(&packet.bytes) else { return };
    let bytes = &mut packet.bytes;
    if view.v6 && bytes[1] & 0x30 != 0 {
        bytes[1] |= 0x30;
    } else if !view.v6 && bytes[1] & 3 != 0 {
        bytes[1] |= 3;
        view.rewrite_ip(bytes, 0);
    }
}

fn sequence(packet: &[u8], view: View) -> u32 {
    let at = view.transport + 4;
    u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}

fn add_to_sequence(packet: &mut [u8], view: View, by: u32) {
    let sequence = sequence(packet, view).wrapping_add(by);
    let at = view.transport + 4;
    packet[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
}

/// Rewrites lengths and checksums of a TCP packet that was put together here.
fn seal(mut bytes: Vec<u8>, view: View, identification: u16) -> Packet {
    view.rewrite_ip(&mut bytes, identification);
    let at = view.transport + 16;
    bytes[at..at + 2].fill(0);
    let view = View { end: bytes.len(), protocol: Protocol::TCP, ..view };
    let sum = view.transport_sum(&bytes).finish();
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Packet::complete(bytes)
}
