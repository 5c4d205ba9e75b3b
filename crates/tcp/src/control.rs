//! Congestion control: how much may be in flight.

use crate::core::seq::Seq;
use crate::time::Time;

mod cubic;
mod reno;

pub use cubic::{Cubic, CubicMemory};
pub use reno::Reno;

/// What a controller decides for a flow, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window: the most that may be in flight.
    pub congestion: u32,
    /// Below this the window grows by slow start.
    pub threshold: u32,
}

impl Window {
    /// It was not used for a long time: half is left, `least` at least, and slow start goes on to three quarters
    /// (RFC 7661, 4.4.4).
    pub(crate) fn decay(&mut self, least: u32) {
        self.threshold = self.threshold.max(self.congestion / 4 * 3);
        self.congestion = self.congestion.min((self.congestion / 2).max(least));
    }
}

/// An acknowledgement while the window was what limited the sender.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it arrived.
    pub now: Time,
    /// Bytes that it newly acknowledges, also selectively.
    pub bytes: u32,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// The round-trip time that it measures, in microseconds.
    pub rtt: Option<u32>,
    /// Smoothed round-trip time in microseconds; 0 before the first measurement.
    pub srtt: u32,
    /// SND.UNA behind it.
    pub upto: Seq,
    /// SND.NXT.
    pub sent_to: Seq,
}

/// A congestion controller. The stack finds out what was delivered and what was lost, and never
/// asks it more than once for each round trip in which something was lost.
pub trait Control {
    /// What a controller remembers of a flow: kept, for each, as long as the flow lives.
    type Memory: Copy + Default + std::fmt::Debug;

    /// The window of a new flow; `conservative` after a lost SYN.
    fn start(&self, mss: u32, conservative: bool) -> Window;

    /// Bytes were newly acknowledged.
    fn acknowledged(&self, window: &mut Window, memory: &mut Self::Memory, acked: &Acked);

    /// Something was lost while so much was in flight. The window goes down to its threshold.
    fn congested(&self, window: &mut Window, memory: &mut Self::Memory, flight: u32, mss: u32);

    /// The retransmission timer expired; `again` if it did before for the same data.
    fn timed_out(&self, window: &mut Window, memory: &mut Self::Memory, flight: u32, mss: u32, again: bool);
}

/// RFC 6928, section 2: min(10 MSS, max(2 MSS, 14,600)); RFC 5681, 3.1: after a lost SYN one segment.
fn initial_window(mss: u32, conservative: bool) -> Window {
    let whole = (10 * mss).min((2 * mss).max(14_600));
    Window { congestion: if conservative { mss } else { whole }, threshold: u32::MAX }
}

/// The largest window that makes sense (RFC 7323, 2.3).
const LARGEST: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    /// An acknowledgement of so many bytes, in segments of 1,000 bytes, at this millisecond.
    pub(super) fn acked(bytes: u32, millis: u64) -> Acked {
        let now = Time::from_micros(millis * 1000);
        Acked { now, bytes, mss: 1000, rtt: None, srtt: 0, upto: Seq(0), sent_to: Seq(0) }
    }
}
