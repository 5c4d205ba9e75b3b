//! CUBIC (RFC 9438) with HyStart++ (RFC 9406).

use std::num::NonZeroU32;

use super::{Acked, Control, LARGEST, Window, initial_window};
use crate::core::seq::Seq;
use crate::time::Time;

/// CUBIC (RFC 9438), whose slow start ends where the round trip begins to grow (HyStart++,
/// RFC 9406), and the initial window of RFC 6928.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic;

/// What CUBIC remembers of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct CubicMemory {
    /// W_max: the window at the last congestion, less if it was below the one before; 0: none.
    most: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Slow(Slow),
    Avoid(Avoid),
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Slow(Slow::default())
    }
}

/// State of HyStart++ (RFC 9406, 4.2). Round trips in microseconds; `u32::MAX`: none.
#[derive(Clone, Copy, Debug)]
struct Slow {
    /// The round is over when this is acknowledged, if one has begun.
    until: Seq,
    /// The least round trip of the last round, and of this one.
    last: u32,
    least: u32,
    /// The least of the last acknowledgements, at how many moments they came, and the last of these in
    /// microseconds, modulo 2^32.
    recent: u32,
    at: u32,
    /// While the window is held, since round trips have grown: the threshold that there was before.
    held: Option<NonZeroU32>,
    moments: u8,
    has_begun: bool,
}

impl Default for Slow {
    fn default() -> Slow {
        let (last, least, recent) = (u32::MAX, u32::MAX, u32::MAX);
        Slow { until: Seq(0), last, least, recent, at: 0, held: None, moments: 0, has_begun: false }
    }
}

/// An epoch of congestion avoidance (RFC 9438, 4.1). Times are milliseconds of the caller's clock.
#[derive(Clone, Copy, Debug)]
struct Avoid {
    since: u32,
    /// The last acknowledgement: time in which the window was not used does not count (RFC 9438, 5.8).
    last: u32,
    /// K: how long after its begin the plateau is reached.
    plateau: u32,
    /// The window at the plateau.
    origin: u32,
    /// W_est: the window that Reno would have.
    reno: u32,
    /// Acknowledged bytes that do not count in it yet.
    credit: u32,
}

/// C (RFC 9438, 5).
const C: f64 = 0.4;
/// beta_cubic, in tenths (RFC 9438, 4.6).
const BETA: u64 = 7;

/// RFC 9406, 4.3.
const RTT_THRESHOLD: (u32, u32) = (4_000, 16_000);
/// The lower one of short paths is half a round trip, but no less than a program may be kept from running: four
/// milliseconds of a gigabit are 500 KB, 40 times what is on its way on a path of 100 us.
const RTT_THRESHOLD_LEAST: u32 = 1_000;
const RTT_SAMPLES: u8 = 8;
/// Segments of a window for which a few late acknowledgements are not the queue, as Linux has it.
const LOW_WINDOW: u32 = 16;

impl Control for Cubic {
    type Memory = CubicMemory;

    fn start(&self, mss: u32, conservative: bool) -> Window {
        initial_window(mss, conservative)
    }

    fn acknowledged(&self, window: &mut Window, memory: &mut CubicMemory, acked: &Acked) {
        let mut rest = acked.bytes;
        let is_held = matches!(memory.phase, Phase::Slow(Slow { held: Some(_), .. }));
        if window.congestion < window.threshold || is_held {
            if !matches!(memory.phase, Phase::Slow(_)) {
                memory.phase = Phase::default();
            }
            if let Phase::Slow(slow) = &mut memory.phase {
                rest = slow.acknowledged(window, acked);
            }
        }
        if rest > 0 && window.congestion >= window.threshold {
            let most = memory.most;
            if let Phase::Slow(_) = memory.phase {
                memory.phase = Phase::Avoid(Avoid::new(window.congestion, most, acked));
            }
            if let Phase::Avoid(avoid) = &mut memory.phase {
                avoid.acknowledged(window, rest, acked);
            }
        }
        window.congestion = window.congestion.min(LARGEST);
    }

    fn congested(&self, window: &mut Window, memory: &mut CubicMemory, flight: u32, mss: u32) {
        memory.reduce(window, flight, mss);
        window.congestion = window.threshold;
    }

    fn timed_out(&self, window: &mut Window, memory: &mut CubicMemory, flight: u32, mss: u32, again: bool) {
        if !again {
            memory.reduce(window, flight, mss);
            // RFC 9438, 4.8: congestion avoidance begins at the plateau.
            memory.most = 0;
        }
        memory.phase = Phase::default();
        window.congestion = mss;
    }
}

impl CubicMemory {
    /// RFC 9438, 4.6 and 4.7.
    fn reduce(&mut self, window: &mut Window, flight: u32, mss: u32) {
        // What is not in flight, as pacing holds it back, counts; what the program did not send does not.
        let used = window.congestion.min(flight.saturating_mul(2));
        // Fast convergence: leave room to those that came later.
        let behind = used < self.most;
        self.most = if behind { tenths(used, 10 + BETA) / 2 } else { used };
        window.threshold = tenths(used, BETA).max(2 * mss);
        self.phase = Phase::default();
    }
}

fn tenths(bytes: u32, count: u64) -> u32 {
    (u64::from(bytes) * count / 10) as u32
}

impl Slow {
    /// Lets the window grow. Returns how many bytes are left for congestion avoidance.
    ///
    /// RFC 9406 compares the least round trip of a whole round, which is that of its begin: the queue was empty
    /// then, and holds another window at the end. Here the least of any eight moments counts; in a short round, of which
    /// there are fewer, also the whole round's. A longer one may be late since a program has not run. The window is
    /// then held for a round, where RFC 9406 has it grow more slowly for five: three times as large it would
    /// fill queues of two windows. If that round was short, the growth was a disturbance.
    fn acknowledged(&mut self, window: &mut Window, acked: &Acked) -> u32 {
        let is_late = acked.rtt.is_some_and(|rtt| self.is_late(rtt, acked.now));
        let can_tell = |window: &Window| window.congestion >= LOW_WINDOW * acked.mss;
        let grown = match self.held {
            None => acked.bytes.min(window.threshold - window.congestion),
            Some(_) => acked.bytes,
        };
        if self.held.is_none() {
            window.congestion += grown;
            if is_late && can_tell(window) {
                self.hold(window, acked);
            }
        }
        if !self.has_begun || self.until.upto(acked.upto) {
            (self.until, self.has_begun) = (acked.sent_to, true);
            let is_late = self.least >= self.bound();
            let is_short = self.last < RTT_THRESHOLD.0 && self.least < u32::MAX;
            match self.held.take() {
                Some(threshold) if !is_late => window.threshold = threshold.get(),
                None if is_late && is_short && can_tell(window) => self.hold(window, acked),
                _ if self.least < u32::MAX => self.last = self.least,
                _ => {}
            }
            self.least = u32::MAX;
        }
        acked.bytes - grown
    }

    /// Holds the window until what is in flight has been acknowledged.
    fn hold(&mut self, window: &mut Window, acked: &Acked) {
        self.held = NonZeroU32::new(window.threshold);
        window.threshold = window.congestion;
        (self.until, self.least) = (acked.sent_to, u32::MAX);
    }

    /// Takes a round trip. Returns whether those of the last moments all were longer than in the last round.
    /// What came at one moment, when a program has not run for a while, may all be late.
    fn is_late(&mut self, rtt: u32, now: Time) -> bool {
        let (at, mut is_late) = (now.micros() as u32, false);
        if at != self.at {
            if self.moments == RTT_SAMPLES {
                is_late = self.recent >= self.bound();
                (self.recent, self.moments) = (u32::MAX, 0);
            }
            (self.at, self.moments) = (at, self.moments + 1);
        }
        self.recent = self.recent.min(rtt);
        self.least = self.least.min(rtt);
        is_late
    }

    /// Longer round trips than this have waited in a queue.
    fn bound(&self) -> u32 {
        let (low, high) = RTT_THRESHOLD;
        let low = (self.last / 2).clamp(RTT_THRESHOLD_LEAST, low);
        self.last.saturating_add((self.last / 8).clamp(low, high))
    }
}

fn millis(now: Time) -> u32 {
    (now.micros() / 1000) as u32
}

impl Avoid {
    fn new(congestion: u32, most: u32, acked: &Acked) -> Avoid {
        let now = millis(acked.now);
        let origin = most.max(congestion);
        let missing = f64::from(origin - congestion) / f64::from(acked.mss.max(1));
        let plateau = ((missing / C).cbrt() * 1e3) as u32;
        Avoid { since: now, last: now, plateau, origin, reno: congestion, credit: 0 }
    }

    /// W_cubic (RFC 9438, 4.2), so many milliseconds after the begin.
    fn cubic(&self, millis: u32, mss: u32) -> f64 {
        let t = (f64::from(millis) - f64::from(self.plateau)) / 1e3;
        f64::from(self.origin) + C * t * t * t * f64::from(mss)
    }

    fn acknowledged(&mut self, window: &mut Window, bytes: u32, acked: &Acked) {
        let now = millis(acked.now);
        let idle = now.wrapping_sub(self.last);
        let rtt = acked.srtt.div_ceil(1000);
        if idle > 2 * rtt + IDLE_MILLIS {
            self.since = self.since.wrapping_add(idle);
        }
        self.last = now;
        let congestion = f64::from(window.congestion);
        // RFC 9438, 4.3: as many segments a round trip as Reno would add with this reduction, and one from
        // where the reduction is made good: the threshold is beta of cwnd_prior.
        let made_good = tenths(self.reno, BETA) >= window.threshold;
        let alpha = if made_good { 1.0 } else { 9.0 / 17.0 };
        self.credit = self.credit.saturating_add(bytes);
        let step = alpha * f64::from(acked.mss) * f64::from(self.credit) / congestion;
        if step >= 16.0 {
            self.reno = self.reno.saturating_add(step as u32);
            self.credit = 0;
        }
        let elapsed = now.wrapping_sub(self.since);
        if self.cubic(elapsed, acked.mss) < f64::from(self.reno) {
            window.congestion = window.congestion.max(self.reno);
        } else {
            // RFC 9438, 4.4 and 4.5.
            let target =
                self.cubic(elapsed.saturating_add(rtt), acked.mss).clamp(congestion, 1.5 * congestion);
            let step = (target - congestion) * f64::from(bytes) / congestion;
            window.congestion = window.congestion.saturating_add(step as u32);
        }
    }
}

/// Beside two round trips: how long acknowledgements may be apart while the window is in use.
const IDLE_MILLIS: u32 = 50;

#[cfg(test)]
mod tests {
    use super::super::tests::acked;
    use super::*;

    const MSS: u32 = 1000;

    /// Acknowledges whole windows for so many round trips of `rtt` milliseconds.
    fn rounds(window: &mut Window, memory: &mut CubicMemory, now: &mut u64, rtt: u64, count: u32) {
        for _ in 0..count {
            *now += rtt;
            for _ in 0..window.congestion / MSS {
                let one = Acked { srtt: rtt as u32 * 1000, ..acked(MSS, *now) };
                Cubic.acknowledged(window, memory, &one);
            }
        }
    }

    /// RFC 9438, 4.2 and 4.6: 0.7 of the window, back at the plateau after K, slow there and quick beyond.
    #[test]
    fn the_window_returns_to_its_plateau() {
        let mut memory = CubicMemory::default();
        let mut window = Window { congestion: 1_000_000, threshold: 500_000 };
        Cubic.congested(&mut window, &mut memory, 1_000_000, MSS);
        assert_eq!((window.congestion, window.threshold), (700_000, 700_000));
        // K = cbrt(300 / 0.4) = 9.09 s.
        let mut now = 1_000;
        rounds(&mut window, &mut memory, &mut now, 100, 90);
        assert!((990_000..=1_000_000).contains(&window.congestion), "{window:?}");
        rounds(&mut window, &mut memory, &mut now, 100, 20);
        assert!((1_000_000..=1_010_000).contains(&window.congestion), "{window:?}");
        rounds(&mut window, &mut memory, &mut now, 100, 70);
        assert!(window.congestion > 1_200_000, "{window:?}");
        // RFC 9438, 4.7: a second reduction before the plateau lowers it.
        let reached = window.congestion;
        Cubic.congested(&mut window, &mut memory, reached, MSS);
        let below = window.congestion;
        Cubic.congested(&mut window, &mut memory, below, MSS);
        assert_eq!(memory.most, tenths(below, 17) / 2);
    }

    /// RFC 9438, 4.3: on short paths no slower than Reno with the same reduction, 9/17 of a segment a round trip.
    #[test]
    fn short_paths_are_as_with_reno() {
        let mut memory = CubicMemory::default();
        let mut window = Window { congestion: 20_000, threshold: 10_000 };
        Cubic.congested(&mut window, &mut memory, 20_000, MSS);
        let mut now = 1_000;
        rounds(&mut window, &mut memory, &mut now, 1, 10);
        let grown = window.congestion - 14_000;
        assert!((4_000..=5_500).contains(&grown), "{window:?}");
    }

    /// RFC 9438, 4.8: after a timeout slow start, and no reduction for a second expiry.
    #[test]
    fn timeouts() {
        let mut memory = CubicMemory::default();
        let mut window = Window { congestion: 100_000, threshold: 50_000 };
        Cubic.timed_out(&mut window, &mut memory, 100_000, MSS, false);
        assert_eq!((window.congestion, window.threshold), (MSS, 70_000));
        Cubic.timed_out(&mut window, &mut memory, MSS, MSS, true);
        assert_eq!((window.congestion, window.threshold), (MSS, 70_000));
    }

    /// On a path of 100 us whose acknowledgements come in two batches a round. With a bound of 4 ms (RFC 9406, 4.3), or with
    /// eight moments alone, it would not end.
    #[test]
    fn slow_start_of_short_paths_ends_early() {
        let mut memory = CubicMemory::default();
        let mut window = Cubic.start(MSS, false);
        let mut now = 0;
        for number in 1u32..20 {
            // 100 bytes a microsecond.
            let rtt = 100 + window.congestion / 100;
            now += u64::from(rtt);
            for at in 0..window.congestion / MSS {
                let (upto, sent_to) = [number, number + 1].map(|round| Seq(round * 1_000_000 + at)).into();
                let half = u64::from(2 * at * MSS / window.congestion);
                let one = Acked {
                    now: Time::from_micros(now + half),
                    rtt: Some(rtt),
                    upto,
                    sent_to,
                    ..acked(MSS, 0)
                };
                Cubic.acknowledged(&mut window, &mut memory, &one);
            }
        }
        assert!((100_000..1_000_000).contains(&window.congestion), "{window:?}");
    }

    /// Round trips that grow by an eighth hold the window at once (RFC 9406, 4.2). It grows on if they fall
    /// below again within a round, and slow start is over if they do not. Late acknowledgements of one moment
    /// hold nothing.
    #[test]
    fn slow_start_ends_before_the_queue_is_full() {
        let mut memory = CubicMemory::default();
        let mut window = Cubic.start(MSS, false);
        let mut round = |window: &mut Window, number: u32, rtt: u32, at_once: u32| {
            for at in 0..window.congestion / MSS {
                let sent_to = Seq((number + 1) * 1_000_000 + at);
                let upto = Seq(number * 1_000_000 + at);
                let now = Time::from_micros(u64::from(number) * 40_000 + u64::from(at / at_once) * 100);
                let one = Acked { now, rtt: Some(rtt), upto, sent_to, ..acked(MSS, 0) };
                Cubic.acknowledged(window, &mut memory, &one);
            }
        };
        for number in 1..4 {
            round(&mut window, number, 40_000, 1);
        }
        assert_eq!((window.congestion, window.threshold), (80_000, u32::MAX));
        round(&mut window, 4, 46_000, 16);
        assert_eq!((window.congestion, window.threshold), (160_000, u32::MAX));
        round(&mut window, 5, 52_000, 1);
        assert!(window.congestion < 180_000, "{window:?}");
        // A disturbance.
        round(&mut window, 6, 41_000, 1);
        let before = window.congestion;
        round(&mut window, 7, 41_000, 1);
        assert_eq!(window.congestion, 2 * before);
        for number in 8..20 {
            round(&mut window, number, 50_000, 1);
        }
        let after = window.congestion;
        assert!(window.threshold < u32::MAX && after < 2 * before + before / 2, "{window:?}");
    }
}
