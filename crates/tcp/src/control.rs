//! Congestion control: how much may be in flight.

/// What a controller decides for a flow, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window: the most that may be in flight.
    pub congestion: u32,
    /// Below this the window grows by slow start.
    pub threshold: u32,
}

/// A congestion controller. The stack finds out what was delivered and what was lost, and never
/// asks it more than once for each round trip in which something was lost.
pub trait Control {
    /// The window of a new flow; `conservative` after a lost SYN.
    fn start(&self, mss: u32, conservative: bool) -> Window;

    /// So many bytes were newly acknowledged, while the window was what limited the sender.
    fn acknowledged(&self, window: &mut Window, bytes: u32, mss: u32);

    /// Something was lost while so much was in flight.
    fn congested(&self, window: &mut Window, flight: u32, mss: u32);

    /// The retransmission timer expired; `again` if it did before for the same data.
    fn timed_out(&self, window: &mut Window, flight: u32, mss: u32, again: bool);
}

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
//# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion avoidance,
//# and exponential backoff of RTO to avoid creating congestion collapse conditions (MUST-19).
/// Reno (RFC 5681), with appropriate byte counting (RFC 3465), but by whole acknowledgements, and the
/// initial window of RFC 6928.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reno;

/// RFC 6928, section 2: min(10 MSS, max(2 MSS, 14,600)).
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

impl Control for Reno {
    fn start(&self, mss: u32, conservative: bool) -> Window {
        // RFC 5681, 3.1: after a lost SYN the window is one segment.
        let congestion = if conservative { mss } else { initial_window(mss) };
        Window { congestion, threshold: u32::MAX }
    }

    fn acknowledged(&self, window: &mut Window, bytes: u32, mss: u32) {
        // Slow start up to the threshold, by all that is acknowledged, for what is sent is paced
        // (RFC 9406, 4.2: L is infinite then).
        let slow = bytes.min(window.threshold.saturating_sub(window.congestion));
        window.congestion = window.congestion.saturating_add(slow);
        let rest = bytes - slow;
        if rest > 0 {
            // One segment a round trip.
            let part = u64::from(mss) * u64::from(rest) / u64::from(window.congestion.max(1));
            window.congestion = window.congestion.saturating_add((part as u32).max(1));
        }
        window.congestion = window.congestion.min(1 << 30);
    }

    fn congested(&self, window: &mut Window, flight: u32, mss: u32) {
        // Equation (4) of RFC 5681.
        window.threshold = (flight / 2).max(2 * mss);
        window.congestion = window.threshold;
    }

    fn timed_out(&self, window: &mut Window, flight: u32, mss: u32, again: bool) {
        // RFC 5681, 3.1: the threshold is lowered once, not for each expiry.
        if !again {
            window.threshold = (flight / 2).max(2 * mss);
        }
        window.congestion = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_a_segment() {
        let mss = 1000;
        let mut window = Reno.start(mss, false);
        assert_eq!(window.congestion, 10_000);
        for _ in 0..10 {
            Reno.acknowledged(&mut window, mss, mss);
        }
        assert_eq!(window.congestion, 20_000, "RFC 5681, equation (2)");
        Reno.congested(&mut window, 20_000, mss);
        assert_eq!((window.congestion, window.threshold), (10_000, 10_000));
        for _ in 0..10 {
            Reno.acknowledged(&mut window, mss, mss);
        }
        assert!((10_900..=11_000).contains(&window.congestion), "equation (3): {window:?}");
        Reno.timed_out(&mut window, 11_000, mss, false);
        assert_eq!((window.congestion, window.threshold), (1_000, 5_500));
        Reno.timed_out(&mut window, 1_000, mss, true);
        assert_eq!(window.threshold, 5_500, "the second expiry for the same data");
    }
}
