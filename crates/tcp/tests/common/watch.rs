//! What a path costs one direction of a connection, measured outside of both hosts.

use std::collections::VecDeque;

/// The data that one side sends: when, how often, and when the other side's acknowledgements of it
/// come back.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Of what is not acknowledged: where it ends, when it was sent, and whether it was sent again.
    flying: VecDeque<(u32, u64, bool)>,
    /// Bytes that were sent for the first time.
    pub(crate) sent: u64,
    /// Bytes that were sent again.
    pub(crate) again: u64,
    /// How often something was sent while nothing was outstanding: each may end with a tail loss probe.
    pub(crate) flights: u64,
    /// The largest segment.
    pub(crate) segment: u64,
    /// Smoothed round-trip time in microseconds as RFC 6298, 2, has it, of bytes that were sent once;
    /// 0 before the first.
    pub(crate) srtt: f64,
    pub(crate) samples: u64,
}

fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Watch {
    /// Bytes `seq` to `end` are sent in segments of this size, of which those from `next` on are new.
    pub(crate) fn sent(&mut self, now: u64, seq: u32, end: u32, next: u32, size: u64) {
        let new = if before(next, end) { end.wrapping_sub(next).min(end.wrapping_sub(seq)) } else { 0 };
        let again = end.wrapping_sub(seq) - new;
        self.segment = self.segment.max(size);
        self.sent += u64::from(new);
        self.again += u64::from(again);
        if again > 0 {
            for flying in self.flying.iter_mut().filter(|flying| before(seq, flying.0)) {
                flying.2 = true;
            }
        }
        if new > 0 {
            self.flights += u64::from(self.flying.is_empty());
            // Each segment of a frame is acknowledged by itself.
            let mut left = new;
            while left > 0 {
                left -= left.min(size as u32);
                self.flying.push_back((end.wrapping_sub(left), now, again > 0));
            }
        }
    }

    /// An acknowledgement comes back.
    pub(crate) fn acknowledged(&mut self, now: u64, ack: u32) {
        let mut oldest = None;
        let mut clear = true;
        while let Some(&(end, at, again)) = self.flying.front()
            && !before(ack, end)
        {
            self.flying.pop_front();
            oldest = oldest.or(Some(at));
            clear &= !again;
        }
        if let Some(at) = oldest
            && clear
        {
            let rtt = (now - at) as f64;
            self.srtt = if self.samples == 0 { rtt } else { self.srtt + (rtt - self.srtt) / 8.0 };
            self.samples += 1;
        }
    }

    /// Bytes that may be sent again where so many were lost: a fifth more, ten segments, and a tail
    /// loss probe a flight.
    pub(crate) fn may_repeat(&self, lost: u64) -> u64 {
        lost + lost / 5 + self.segment * (10 + self.flights)
    }
}
