//! Reno (RFC 5681).

use super::{Acked, Control, LARGEST, Window, initial_window};

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
//# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion avoidance,
//# and exponential backoff of RTO to avoid creating congestion collapse conditions (MUST-19).
/// Reno (RFC 5681), with appropriate byte counting (RFC 3465), but by whole acknowledgements, and the
/// initial window of RFC 6928.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reno;

impl Control for Reno {
    type Memory = ();

    fn start(&self, mss: u32, conservative: bool) -> Window {
        initial_window(mss, conservative)
    }

    fn acknowledged(&self, window: &mut Window, (): &mut (), acked: &Acked) {
        let &Acked { bytes, mss, .. } = acked;
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
        window.congestion = window.congestion.min(LARGEST);
    }

    fn congested(&self, window: &mut Window, (): &mut (), flight: u32, mss: u32) {
        // Equation (4) of RFC 5681.
        window.threshold = (flight / 2).max(2 * mss);
        window.congestion = window.threshold;
    }

    fn timed_out(&self, window: &mut Window, (): &mut (), flight: u32, mss: u32, again: bool) {
        // RFC 5681, 3.1: the threshold is lowered once, not for each expiry.
        if !again {
            window.threshold = (flight / 2).max(2 * mss);
        }
        window.congestion = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::acked;
    use super::*;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_a_segment() {
        let mss = 1000;
        let mut window = Reno.start(mss, false);
        assert_eq!(window.congestion, 10_000);
        for _ in 0..10 {
            Reno.acknowledged(&mut window, &mut (), &acked(mss, 0));
        }
        assert_eq!(window.congestion, 20_000, "RFC 5681, equation (2)");
        Reno.congested(&mut window, &mut (), 20_000, mss);
        assert_eq!((window.congestion, window.threshold), (10_000, 10_000));
        for _ in 0..10 {
            Reno.acknowledged(&mut window, &mut (), &acked(mss, 0));
        }
        assert!((10_900..=11_000).contains(&window.congestion), "equation (3): {window:?}");
        Reno.timed_out(&mut window, &mut (), 11_000, mss, false);
        assert_eq!((window.congestion, window.threshold), (1_000, 5_500));
        Reno.timed_out(&mut window, &mut (), 1_000, mss, true);
        assert_eq!(window.threshold, 5_500, "the second expiry for the same data");
    }
}
