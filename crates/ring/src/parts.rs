//! Parts: which bytes of a direction travel in which lane.

use crate::Corrupt;
use crate::layout::{Header, MAX_UNREAD_RECORDS, RECORDS, Record};
use crate::sync::Ordering;

/// `tcp_start` of a part that travels in the ring.
const IN_RING: u64 = u64::MAX;

/// What carries a part of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The kernel connection.
    Tcp,
    /// The sender's segment.
    Ring,
}

impl Lane {
    /// The lane of part `number`: lanes alternate, and part 0 is TCP.
    #[inline]
    pub(crate) fn of(number: u32) -> Lane {
        if number.is_multiple_of(2) { Lane::Tcp } else { Lane::Ring }
    }
}

/// The opening of a part, as its sender tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Opening {
    /// Stream offset of its first byte.
    pub(crate) start: u64,
    /// TCP-lane offset of its first byte, if it travels there.
    pub(crate) tcp_start: Option<u64>,
}

fn place(header: &Header, number: u32) -> &Record {
    &header.records[(number % RECORDS) as usize]
}

/// Writes record `number` and publishes it.
pub(crate) fn publish(own: &Header, number: u32, opening: Opening) {
    let record = place(own, number);
    record.start.store(opening.start, Ordering::Relaxed);
    record.tcp_start.store(opening.tcp_start.unwrap_or(IN_RING), Ordering::Relaxed);
    // PART-PAIR: release the record, and the ring bytes of the part before it.
    own.parts_published.store(number.wrapping_add(1), Ordering::Release);
}

/// Records of `peer` that `taken` ones do not count, at most as many as there may be.
#[inline]
pub(crate) fn unread(peer: &Header, taken: u32) -> Result<u32, Corrupt> {
    // PART-PAIR: acquire what the record says.
    let unread = peer.parts_published.load(Ordering::Acquire).wrapping_sub(taken);
    if unread > MAX_UNREAD_RECORDS { Err(Corrupt::Parts) } else { Ok(unread) }
}

/// Record `number` of `peer`; it must lie at or behind stream offset `reached`, in the lane
/// that its number tells, and not before what the TCP lane has given already.
#[cold]
pub(crate) fn read(peer: &Header, number: u32, reached: u64, tcp: u64) -> Result<Opening, Corrupt> {
    let record = place(peer, number);
    let start = record.start.load(Ordering::Relaxed);
    let tcp_start = record.tcp_start.load(Ordering::Relaxed);
    if start < reached {
        return Err(Corrupt::RecordStart);
    }
    match (Lane::of(number.wrapping_add(1)), tcp_start) {
        (Lane::Ring, IN_RING) => Ok(Opening { start, tcp_start: None }),
        (Lane::Tcp, tcp_start) if tcp_start != IN_RING && tcp_start >= tcp => {
            Ok(Opening { start, tcp_start: Some(tcp_start) })
        }
        _ => Err(Corrupt::RecordLane),
    }
}

/// Where in the stream the part that record `number` of this end opened begins.
pub(crate) fn begun_at(own: &Header, number: u32) -> u64 {
    place(own, number).start.load(Ordering::Relaxed)
}

/// Where in the TCP lane the part that record `number` opened begins.
pub(crate) fn opened_at(peer: &Header, number: u32) -> Option<u64> {
    Some(place(peer, number).tcp_start.load(Ordering::Relaxed)).filter(|start| *start != IN_RING)
}
