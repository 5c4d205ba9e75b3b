//! Time as the caller gives it.

use std::time::Duration;

/// Microseconds since a moment that the caller chose. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// So many microseconds after the caller's origin.
    pub const fn from_micros(micros: u64) -> Time {
        Time(micros)
    }

    /// Microseconds since the caller's origin.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Time since an earlier moment; zero if that moment is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The moment this much later.
    pub const fn after(self, wait: Duration) -> Time {
        Time(self.0.saturating_add(micros(wait)))
    }

    pub(crate) const fn plus(self, micros: u64) -> Time {
        Time(self.0.saturating_add(micros))
    }

    /// The last tick of the timer wheel that is not later.
    pub(crate) const fn tick(self) -> u64 {
        self.0 >> TICK_BITS
    }

    /// The first tick that is not earlier: a timer never fires before its time.
    pub(crate) const fn tick_after(self) -> u64 {
        self.0.div_ceil(1 << TICK_BITS)
    }

    pub(crate) const fn of_tick(tick: u64) -> Time {
        Time(tick << TICK_BITS)
    }
}

impl From<Duration> for Time {
    /// The moment this long after the caller's origin.
    fn from(since_origin: Duration) -> Time {
        Time(micros(since_origin))
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Duration {
        Duration::from_micros(time.0)
    }
}

/// A duration in microseconds.
pub(crate) const fn micros(wait: Duration) -> u64 {
    let micros = wait.as_micros();
    if micros > u64::MAX as u128 { u64::MAX } else { micros as u64 }
}

/// A tick is 64 microseconds.
const TICK_BITS: u32 = 6;

/// A moment at which something is to happen to a flow, or none. In ticks, modulo 2^32: 76 hours,
/// of which half can lie ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadline(u32);

impl Deadline {
    pub(crate) const NONE: Deadline = Deadline(0);

    pub(crate) fn at(time: Time) -> Deadline {
        // 0 is NONE; one tick later is early enough.
        Deadline((time.tick_after() as u32).max(1))
    }

    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    /// The tick of it, counted like `Time::tick`.
    pub(crate) fn tick(self, now: Time) -> Option<u64> {
        let ahead = self.0.wrapping_sub(now.tick() as u32) as i32;
        self.is_set().then(|| now.tick().saturating_add_signed(i64::from(ahead)))
    }

    pub(crate) fn is_due(self, now: Time) -> bool {
        self.tick(now).is_some_and(|tick| tick <= now.tick())
    }
}
