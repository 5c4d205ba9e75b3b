//! When to look for completions for a while before sleeping.
//!
//! The rule: a wait spins for as long as this machine takes to wake a thread, and twice as
//! long if the peer may be asleep, since the peer then has to wake before it can answer. An
//! answer that takes longer than a wake-up is not worth spinning for, and a spin that misses it
//! costs what the sleep would have cost (the ski-rental bound). After a miss waits sleep at
//! once: 1, then 2, 4, up to 64 of them, for as many times as long as the spin took. It took
//! longer than planned where another thread had the core. A miss counts as the first one again
//! once a spin has found something and eight such pauses are over. A connection that is accepted
//! counts as a miss: where connections come and go, many clients that know nothing of each other
//! make the load, and an answer given sooner brings no request sooner (ADR 7).

use std::time::{Duration, Instant};

use crate::config::Spin;

#[cfg(test)]
mod simulation;

/// The wake-up latency while none was measured, as with peers that store no time. Twice as much
/// is what channels spun before, found on two virtual machines with two cores.
const WAKE_UP_GUESS: Duration = Duration::from_micros(25);

/// Of less nothing is gained: the system calls of a sleep take this long.
const WAKE_UP_LEAST: Duration = Duration::from_micros(10);

/// Longer samples count as this: no peer can make a wait spin for more than twice as long.
const WAKE_UP_MOST: Duration = Duration::from_micros(500);

/// With more handles than this the kernel has enough to do while we sleep: spinning would
/// only tear the batches apart, and cost the CPU that they save. Found on two virtual
/// machines with two cores.
const CROWD: u32 = 32;

/// Spins longer than [`WAKE_UP_LEAST`] in a row, after which one wait sleeps: a latency that was
/// measured while others wanted the core would hold for ever otherwise.
const LONG_SPINS_MAX: u32 = 64;

/// Waits without spinning after a miss, and how many times as long as the spin the pause lasts.
const PAUSE_TIMES_MAX: u32 = 64;

/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Pauses after which a miss may be the first one again.
const CALM: u32 = 8;

pub(crate) struct SpinPolicy {
    mode: Spin,
    /// Wake-up latency, smoothed; none was measured yet.
    wake_up: Option<Duration>,
    /// Begin and end of the last sleep, on CLOCK_MONOTONIC, until its wake-up was measured.
    sleep: Option<(u64, u64)>,
    /// Whether the peer of one of the writes since the last wait slept, if rings took them.
    peer_slept: Option<bool>,
    /// The channel has rings, whose peers may store when they wake it.
    rings: bool,
    /// Until when, and for how many waits more, nothing is spun.
    paused_until: Option<Instant>,
    paused_waits: u32,
    /// How many times as long as the spin the last pause was.
    times: u32,
    /// A spin has found something since the last miss.
    found: bool,
    /// Long spins since the last sleep.
    long_spins: u32,
    /// A connection came since the last wait that might have spun. The next one counts it as a miss.
    accepted: bool,
    /// When the last miss is no reason any more to double the next pause.
    calm_at: Option<Instant>,
}

impl SpinPolicy {
    pub(crate) fn new(mode: Spin) -> SpinPolicy {
        SpinPolicy {
            mode,
            wake_up: None,
            sleep: None,
            peer_slept: None,
            rings: false,
            paused_until: None,
            paused_waits: 0,
            times: 1,
            found: true,
            long_spins: 0,
            accepted: false,
            calm_at: None,
        }
    }

    /// How long to spin before the next sleep of a channel with so many handles.
    ///
    /// Looking at rings costs no system call, and it is what promotion is for: the crowd of
    /// handles does not matter then.
    #[inline]
    pub(crate) fn budget(&mut self, handles: u32, rings: bool, now: impl Fn() -> Instant) -> Duration {
        self.rings = rings;
        let peer_slept = self.peer_slept.take();
        let mode = self.mode;
        match mode {
            Spin::Off => Duration::ZERO,
            Spin::For(budget) => budget,
            Spin::Auto if (!rings && handles > CROWD) || self.pauses(now) => Duration::ZERO,
            Spin::Auto if peer_slept == Some(false) => self.wake_up(),
            Spin::Auto => self.wake_up() * 2,
        }
    }

    /// Whether this wait, at `now`, belongs to a pause; one begins if a connection came.
    fn pauses(&mut self, now: impl Fn() -> Instant) -> bool {
        if std::mem::take(&mut self.accepted) {
            self.missed(self.wake_up() * 2, now());
        }
        if self.paused_waits > 0 || self.paused_until.is_some_and(|end| now() < end) {
            self.paused_waits = self.paused_waits.saturating_sub(1);
            return true;
        }
        self.paused_until = None;
        false
    }

    fn wake_up(&self) -> Duration {
        self.wake_up.unwrap_or(WAKE_UP_GUESS)
    }

    /// Whether the next wait may spin.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        match self.mode {
            Spin::Off => false,
            Spin::For(_) => true,
            Spin::Auto => self.paused_waits == 0 && self.paused_until.is_none(),
        }
    }

    /// A ring took a write, whose reader slept or did not.
    #[inline]
    pub(crate) fn wrote(&mut self, peer_slept: bool) {
        self.peer_slept = Some(peer_slept || self.peer_slept == Some(true));
    }

    /// A spin ended after `spent` with something to hand out.
    #[inline]
    pub(crate) fn found(&mut self, spent: Duration) {
        self.found = true;
        self.long_spins = self.long_spins.saturating_add(u32::from(spent > WAKE_UP_LEAST));
        if self.long_spins >= LONG_SPINS_MAX && self.rings {
            self.long_spins = 0;
            self.paused_waits = 1;
        }
    }

    /// A spin of `spent` ended at `now` without finding anything in its budget.
    pub(crate) fn missed(&mut self, spent: Duration, now: Instant) {
        let first = self.found && self.calm_at.is_none_or(|calm| calm <= now);
        self.times = if first { 1 } else { (self.times * 2).min(PAUSE_TIMES_MAX) };
        self.found = false;
        let pause = spent.saturating_mul(self.times).min(PAUSE_MAX);
        self.paused_waits = self.times;
        self.paused_until = now.checked_add(pause);
        self.calm_at = now.checked_add(pause * CALM);
    }

    /// A connection came.
    #[inline]
    pub(crate) fn accepted(&mut self) {
        self.accepted = true;
    }

    /// A sleep of this length ended at `end`, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn slept(&mut self, length: Duration, end: u64) {
        self.long_spins = 0;
        self.sleep = Some((end.saturating_sub(length.as_nanos().min(u128::from(u64::MAX)) as u64), end));
    }

    /// A peer stored `at` as the time of its last wake-up call. It counts once, and only if it
    /// lies within the last sleep.
    pub(crate) fn woken_at(&mut self, at: u64) {
        let Some((_, end)) = self.sleep.take_if(|(begin, end)| (*begin..=*end).contains(&at)) else { return };
        let sample = Duration::from_nanos(end - at).clamp(WAKE_UP_LEAST, WAKE_UP_MOST);
        // Smoothed as RFC 6298 (2.2, 2.3) has it for round trips.
        self.wake_up = Some(self.wake_up.map_or(sample, |wake_up| wake_up - wake_up / 8 + sample / 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn a_miss_pauses_and_the_next_one_for_longer() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let now = Instant::now();
        let budget = policy.budget(1, false, || now);
        assert_eq!(budget, WAKE_UP_GUESS * 2);
        let mut end = now;
        for times in [1, 2, 4, 8, 16, 32, 64, 64] {
            policy.missed(budget, end);
            assert!(!policy.is_on());
            // It has to last so many waits, and so much time.
            let much_later = end + PAUSE_MAX;
            for _ in 0..times {
                assert_eq!(policy.budget(1, true, || much_later), Duration::ZERO);
            }
            assert_eq!(policy.budget(1, true, || end + budget * times - MICROSECOND), Duration::ZERO);
            end += budget * times;
            assert_eq!(policy.budget(1, true, || end), budget);
            assert!(policy.is_on());
        }
        // What found something, and then nothing soon after, is no first miss.
        policy.found(MICROSECOND);
        policy.missed(budget, end);
        assert_eq!(policy.times, 64);
        policy.found(MICROSECOND);
        policy.missed(budget, end + budget * 64 * CALM);
        assert_eq!(policy.times, 1);
        // Nor is it without having found anything, however late.
        policy.missed(budget, end + Duration::from_secs(60));
        assert_eq!(policy.times, 2);
        policy.missed(Duration::from_secs(60), end);
        (0..4).for_each(|_| assert!(policy.budget(1, true, || end).is_zero()));
        assert!(policy.budget(1, true, || end + PAUSE_MAX - MICROSECOND).is_zero());
        assert_eq!(policy.budget(1, true, || end + PAUSE_MAX), budget);
    }

    #[test]
    fn a_crowd_is_not_spun_for_unless_it_has_rings() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let now = Instant::now();
        assert!(policy.budget(CROWD + 1, false, || now).is_zero());
        assert!(!policy.budget(CROWD + 1, true, || now).is_zero());
        assert!(!policy.budget(CROWD, false, || now).is_zero());
        policy.accepted();
        assert!(policy.budget(CROWD, false, || now).is_zero());
    }

    #[test]
    fn a_peer_that_is_awake_is_given_one_wake_up() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let now = Instant::now();
        policy.wrote(false);
        assert_eq!(policy.budget(1, true, || now), WAKE_UP_GUESS);
        policy.wrote(true);
        policy.wrote(false);
        assert_eq!(policy.budget(1, true, || now), WAKE_UP_GUESS * 2);
        assert_eq!(policy.budget(1, true, || now), WAKE_UP_GUESS * 2);
    }

    #[test]
    fn a_peer_that_lies_is_believed_within_bounds() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let sleep = Duration::from_millis(10);
        let (begin, end) = (5_000_000, 15_000_000);
        // Neither earlier than the sleep, nor after it, nor never; nor without one.
        for at in [0, begin - 1, end + 1, u64::MAX] {
            policy.slept(sleep, end);
            policy.woken_at(at);
            assert_eq!(policy.wake_up, None);
        }
        policy.woken_at(end - 40_000);
        assert_eq!(policy.wake_up, Some(40 * MICROSECOND));
        policy.woken_at(end - 400_000);
        assert_eq!(policy.wake_up, Some(40 * MICROSECOND));
        for (at, most) in [(begin, WAKE_UP_MOST), (end, WAKE_UP_LEAST)] {
            for _ in 0..1000 {
                policy.slept(sleep, end);
                policy.woken_at(at);
                assert!((WAKE_UP_LEAST..=WAKE_UP_MOST).contains(&policy.wake_up()));
            }
            assert!(policy.wake_up().abs_diff(most) < MICROSECOND);
        }
        // A sleep longer than the clock is old.
        policy.slept(Duration::MAX, 1);
        policy.woken_at(0);
    }

    #[test]
    fn what_was_asked_for_is_kept_to() {
        let now = Instant::now();
        for (mode, budget) in [(Spin::Off, Duration::ZERO), (Spin::For(MICROSECOND), MICROSECOND)] {
            let mut policy = SpinPolicy::new(mode);
            policy.missed(MICROSECOND, now);
            assert_eq!(policy.budget(CROWD + 1, false, || now), budget);
            assert_eq!(policy.is_on(), !budget.is_zero());
        }
    }
}
