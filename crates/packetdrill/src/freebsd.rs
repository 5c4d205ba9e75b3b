//! What a script that was written for FreeBSD has, and no other stack needs to have.

use std::time::Duration;

use crate::segment::Segment;

/// How much a window may differ: a right edge moves in steps of up to a segment (RFC 9293,
/// 3.8.6.2.2), and stacks choose different ones.
pub(crate) const WINDOW_STEP: u32 = 1460;

/// FreeBSD adds this to each timeout after the first (`net.inet.tcp.rexmit_slop`), RFC 6298 does
/// not: a repeated SYN may come so much earlier.
pub(crate) const SLOP: Duration = Duration::from_millis(200);

/// FreeBSD rounds its buffer to whole segments, and takes what fits, although it cannot offer
/// more than 65,535 bytes without window scaling: its right edge is further to the right than what
/// it offered. A number of the peer there is moved to the same place at the edge that was offered
/// last: `ack` and `window` of ours.
pub(crate) fn at_our_edge(injected: &Segment, last: &Segment, mtu: u32, v6: bool) -> Segment {
    let mut segment = injected.clone();
    let (Some(ack), Some(window)) = (last.ack, last.window) else { return segment };
    let buffer = 65_536u32.next_multiple_of(mtu - if v6 { 60 } else { 40 });
    let inside = segment.seq.wrapping_sub(ack);
    if inside >= buffer - 1 && inside < buffer + WINDOW_STEP {
        segment.seq -= buffer - u32::from(window);
    }
    segment
}

/// FreeBSD reports that a packet was prohibited as ECONNREFUSED, Linux and this stack as
/// EHOSTUNREACH.
pub(crate) fn is_same_error(wanted: &str, seen: &str) -> bool {
    wanted == seen || (wanted, seen) == ("ECONNREFUSED", "EHOSTUNREACH")
}

/// FreeBSD answers with its FIN again where RFC 9293, 3.10.7.4, has an ACK behind it (CLOSING).
pub(crate) fn without_repeated_fin(expected: &Segment, sent: Option<u32>, seen: &Segment) -> Segment {
    let mut segment = expected.clone();
    let repeated = expected.flags == "F." && expected.len == 0 && sent == Some(expected.seq);
    if repeated && seen.flags == "." {
        segment.flags = ".".into();
        segment.seq = expected.seq.wrapping_add(1);
    }
    segment
}
