//! Time as the store counts it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::command::Exptime;

/// Exptimes above this many seconds are seconds since the epoch (protocol.txt, "Expiration times").
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// Milliseconds since the server started: monotonic, so that a stepped wall clock expires nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Before all that happens.
    pub(crate) const PAST: Self = Self(0);
    /// After all that happens.
    pub(crate) const NEVER: Self = Self(u64::MAX);
}

/// The server's clock, which starts with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_unix: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let started_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_unix }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(milliseconds(self.started.elapsed()))
    }

    /// Seconds since the server started.
    pub(crate) fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Seconds since the epoch.
    pub(crate) fn unix(&self) -> u64 {
        (self.started_unix + self.started.elapsed()).as_secs()
    }

    /// When something given this exptime at `now` ends.
    pub(crate) fn deadline(&self, exptime: Exptime, now: Moment) -> Moment {
        let Exptime(seconds) = exptime;
        match u64::try_from(seconds) {
            Err(_) => Moment::PAST,
            Ok(0) => Moment::NEVER,
            Ok(relative) if seconds <= RELATIVE_MAX => Moment(now.0 + relative * 1000),
            Ok(absolute) => {
                let start = milliseconds(self.started_unix);
                Moment(absolute.saturating_mul(1000).saturating_sub(start))
            }
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exptimes_are_never_relative_absolute_or_past() {
        let clock = Clock::start();
        let now = Moment(5_000);
        let unix = i64::try_from(clock.started_unix.as_secs()).expect("a clock in our age");
        assert_eq!(clock.deadline(Exptime(0), now), Moment::NEVER);
        assert_eq!(clock.deadline(Exptime(-1), now), Moment::PAST);
        assert_eq!(clock.deadline(Exptime(7), now), Moment(12_000));
        assert_eq!(clock.deadline(Exptime(RELATIVE_MAX), now), Moment(2_592_005_000));
        assert_eq!(clock.deadline(Exptime(RELATIVE_MAX + 1), now), Moment::PAST);
        let later = clock.deadline(Exptime(unix + 60), now);
        assert!(later > Moment(59_000) && later <= Moment(60_000));
        assert!(clock.deadline(Exptime(i64::MAX), now) > now);
    }
}
