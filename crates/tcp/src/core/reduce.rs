//! Proportional rate reduction (RFC 9937): in a fast recovery the window shrinks to its threshold as
//! acknowledgements come, and not at once.

/// A recovery, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    /// RecoverFS: what was in flight when it began.
    from: u32,
    /// prr_delivered: what has been delivered since, the first of it by the acknowledgement that began it.
    delivered: u32,
    /// prr_out: what has been sent since.
    out: u32,
}

impl Reduction {
    pub(crate) fn new(flight: u32) -> Reduction {
        Reduction { from: flight.max(1), delivered: 0, out: 0 }
    }

    pub(crate) fn sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// The window after so many bytes were delivered, with so many in flight. `safe`: something was
    /// acknowledged in order, and nothing more is lost (RFC 9937, 6.2).
    pub(crate) fn window(
        &mut self,
        delivered: u32,
        flight: u32,
        threshold: u32,
        mss: u32,
        safe: bool,
    ) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        let may = if flight > threshold {
            let part = (u64::from(self.delivered) * u64::from(threshold)).div_ceil(u64::from(self.from));
            (part as u32).saturating_sub(self.out)
        } else {
            // What is missing is made good, as in slow start if that does no harm.
            let made_good = self.delivered.saturating_sub(self.out).max(delivered);
            let more = if safe { mss } else { 0 };
            (made_good + more).min(threshold - flight)
        };
        let may = if self.out == 0 { may.max(mss) } else { may };
        flight + may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 100 segments of which the first is lost: 70 leave while the other 99 arrive.
    #[test]
    fn sending_follows_delivery() {
        let mut reduction = Reduction::new(100);
        let (mut flight, mut sent) = (99u32, 0);
        for _ in 0..99 {
            flight -= 1;
            let window = reduction.window(1, flight, 70, 1, false);
            let may = window.saturating_sub(flight);
            assert!(may <= 2, "{may} at once");
            reduction.sent(may);
            (flight, sent) = (flight + may, sent + may);
        }
        assert_eq!((flight, sent), (70, 70));
    }

    /// After heavy losses there is less in flight than the threshold: it grows back, no faster than slow start.
    #[test]
    fn flight_grows_back_to_the_threshold() {
        let mut reduction = Reduction::new(100);
        let mut flight = 20u32;
        for _ in 0..60 {
            flight -= 1;
            let window = reduction.window(1, flight, 70, 1, true);
            let may = window - flight;
            assert!(may <= 2 || reduction.out == 0, "{may} at once");
            reduction.sent(may);
            flight += may;
        }
        assert_eq!(flight, 70);
    }
}
