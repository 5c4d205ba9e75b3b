//! Runs: which bytes of a direction travel over which path.

use crate::Corrupt;
use crate::layout::{Header, MAX_UNREAD_RECORDS, RECORDS, Record};
use crate::sync::Ordering;

/// `tcp_start` of a ring run.
const IN_RING: u64 = u64::MAX;

/// The path of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The kernel connection.
    Tcp,
    /// The ring in the sender's region.
    Ring,
}

impl Path {
    /// The path of run `number`: paths alternate, and run 0 is TCP.
    #[inline]
    pub(crate) fn of(number: u32) -> Path {
        if number.is_multiple_of(2) { Path::Tcp } else { Path::Ring }
    }
}

/// The opening of a run, as its sender published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Opening {
    /// Stream offset of its first byte.
    pub(crate) start: u64,
    /// TCP-path offset of its first byte, if it is a TCP run.
    pub(crate) tcp_start: Option<u64>,
}

fn slot(header: &Header, number: u32) -> &Record {
    &header.records[(number % RECORDS) as usize]
}

/// Writes record `number` and publishes it.
pub(crate) fn publish(own: &Header, number: u32, opening: Opening) {
    let record = slot(own, number);
    record.start.store(opening.start, Ordering::Relaxed);
    record.tcp_start.store(opening.tcp_start.unwrap_or(IN_RING), Ordering::Relaxed);
    // RUN-PAIR: release the record, and the ring bytes of the run before it.
    own.runs_published.store(number.wrapping_add(1), Ordering::Release);
}

/// The number of unread records of `peer`, of which `passed` were read; at most as many as
/// there may be.
#[inline]
pub(crate) fn unread(peer: &Header, passed: u32) -> Result<u32, Corrupt> {
    // RUN-PAIR: acquire the records.
    let unread = peer.runs_published.load(Ordering::Acquire).wrapping_sub(passed);
    if unread > MAX_UNREAD_RECORDS { Err(Corrupt::Runs) } else { Ok(unread) }
}

/// Record `number` of `peer`. It must lie at or behind stream offset `reached`, name the
/// path that its number implies, and not begin before the TCP-path bytes consumed
/// already.
#[cold]
pub(crate) fn read(peer: &Header, number: u32, reached: u64, tcp: u64) -> Result<Opening, Corrupt> {
    let record = slot(peer, number);
    let start = record.start.load(Ordering::Relaxed);
    let tcp_start = record.tcp_start.load(Ordering::Relaxed);
    if start < reached {
        return Err(Corrupt::RecordStart);
    }
    match (Path::of(number.wrapping_add(1)), tcp_start) {
        (Path::Ring, IN_RING) => Ok(Opening { start, tcp_start: None }),
        (Path::Tcp, tcp_start) if tcp_start != IN_RING && tcp_start >= tcp => {
            Ok(Opening { start, tcp_start: Some(tcp_start) })
        }
        _ => Err(Corrupt::RecordPath),
    }
}

/// The stream offset at which the run opened by record `number` of this endpoint begins.
pub(crate) fn run_start(own: &Header, number: u32) -> u64 {
    slot(own, number).start.load(Ordering::Relaxed)
}

/// The TCP-path offset at which the run opened by record `number` begins.
pub(crate) fn run_tcp_start(peer: &Header, number: u32) -> Option<u64> {
    Some(slot(peer, number).tcp_start.load(Ordering::Relaxed)).filter(|start| *start != IN_RING)
}
