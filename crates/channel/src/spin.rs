//! When to look for completions for a while before sleeping.
//!
//! A sleep costs a wake-up, which costs more than all the system calls of a transaction;
//! spinning costs the core. It pays while the next completion is near, and that is
//! learned: from how long the last waits were, whether spent spinning or asleep. Where
//! connections come and go, many clients that know nothing of each other make the load:
//! an answer given sooner brings no request sooner, and a spin that fills the CPU makes
//! the slowest answers slower.

use std::time::{Duration, Instant};

use crate::config::Spin;

/// Spin no longer than a wake-up costs: a spin that fails then at most doubles the cost
/// of the wait (the ski-rental bound).
const BUDGET: Duration = Duration::from_micros(50);

/// With more handles than this the kernel has enough to do while we sleep: spinning would
/// only tear the batches apart, and cost the CPU that they save.
const CROWD: u32 = 32;

/// What is believed of a channel that nothing is known of: some waits must have been
/// short before one is spun.
const FAR: u64 = 2 * BUDGET.as_nanos() as u64;

pub(crate) struct SpinPolicy {
    mode: Spin,
    /// Moving average of how long waits took, in nanoseconds.
    gap: u64,
    /// Until when nothing is spun, since others want the core.
    paused_until: Option<Instant>,
    /// How many times as long as the core was away the last pause was, and until when losing it
    /// again means that others have stayed.
    times: u32,
    calm_at: Option<Instant>,
}

/// How many times as long as the core was away nothing is spun: few at first, so that one
/// disturbance is soon forgotten, and twice as many each time that the core is lost again soon:
/// looking whether others still want it then costs a small part of the time.
const TIMES_MIN: u32 = 4;
const TIMES_MAX: u32 = 128;

/// Pauses after which a disturbance is a new one.
const CALM: u32 = 8;

/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl SpinPolicy {
    pub(crate) fn new(mode: Spin) -> SpinPolicy {
        SpinPolicy { mode, gap: FAR, paused_until: None, times: TIMES_MIN, calm_at: None }
    }

    /// A connection came: whatever was learned before no longer holds.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.gap = FAR;
    }

    /// How long to spin before the next sleep of a channel with so many handles.
    ///
    /// Looking at rings costs no system call, and it is what promotion is for: the crowd of
    /// handles does not matter then.
    #[inline]
    pub(crate) fn budget(&mut self, handles: u32, rings: bool, now: Instant) -> Duration {
        if let Some(end) = self.paused_until {
            if now < end {
                return Duration::ZERO;
            }
            self.paused_until = None;
        }
        match self.mode {
            Spin::Off => Duration::ZERO,
            Spin::For(budget) => budget,
            Spin::Auto if (rings || handles <= CROWD) && self.gap < BUDGET.as_nanos() as u64 => BUDGET,
            Spin::Auto => Duration::ZERO,
        }
    }

    /// How often to look at rings before anything that costs more is done: for a
    /// microsecond or two, if the next message is likely to be near.
    #[inline]
    pub(crate) fn looks(&self) -> u32 {
        match self.mode {
            _ if self.paused_until.is_some() => 1,
            Spin::Off => 1,
            Spin::For(_) => 128,
            Spin::Auto if self.gap < BUDGET.as_nanos() as u64 => 128,
            Spin::Auto => 1,
        }
    }

    /// Whether completions are near enough that spinning may soon pay.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        match self.mode {
            _ if self.paused_until.is_some() => false,
            Spin::Off => false,
            Spin::For(_) => true,
            Spin::Auto => self.gap < FAR,
        }
    }

    /// The core was given up for `time` while spinning. True if that was so long that
    /// others are at work there, who would take it each time: sleeping is better then,
    /// since a sleeper that wakes goes first.
    pub(crate) fn gave_up_core(&mut self, time: Duration, now: Instant) -> bool {
        let others = time > 2 * BUDGET;
        if others {
            let again = self.calm_at.is_some_and(|calm| now < calm);
            self.times = if again { (self.times * 2).min(TIMES_MAX) } else { TIMES_MIN };
            let pause = time.saturating_mul(self.times).min(PAUSE_MAX);
            self.paused_until = now.checked_add(pause);
            self.calm_at = now.checked_add(pause * CALM);
        }
        others
    }

    /// A wait took `gap`. Long ones count as a little over the budget, so that a busy time
    /// after a quiet one is recognised soon.
    #[inline]
    pub(crate) fn learn(&mut self, gap: Duration) {
        let gap = gap.as_nanos().min(4 * BUDGET.as_nanos()) as u64;
        self.gap = self.gap - self.gap / 8 + gap / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_while_completions_are_near() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        let now = Instant::now();
        assert_eq!(policy.budget(1, false, now), Duration::ZERO);
        for _ in 0..32 {
            policy.learn(Duration::from_micros(5));
        }
        assert_eq!(policy.budget(1, false, now), BUDGET);
        assert_eq!(policy.budget(CROWD + 1, false, now), Duration::ZERO);
        policy.forget();
        assert_eq!(policy.budget(1, false, now), Duration::ZERO);
        for _ in 0..32 {
            policy.learn(Duration::from_micros(5));
        }
        assert_eq!(policy.budget(1, false, now), BUDGET);
        for _ in 0..32 {
            policy.learn(Duration::from_millis(5));
        }
        assert_eq!(policy.budget(1, false, now), Duration::ZERO);
    }

    #[test]
    fn spins_no_more_for_a_while_where_others_want_the_core() {
        let mut policy = SpinPolicy::new(Spin::Auto);
        (0..32).for_each(|_| policy.learn(Duration::from_micros(5)));
        let now = Instant::now();
        assert!(!policy.gave_up_core(Duration::from_micros(20), now));
        assert_eq!(policy.budget(1, true, now), BUDGET);
        assert!(policy.gave_up_core(Duration::from_millis(1), now));
        assert_eq!(policy.looks(), 1);
        assert_eq!(policy.budget(1, true, now + Duration::from_micros(3999)), Duration::ZERO);
        // Nor where no ring is hot meanwhile.
        assert_eq!(policy.budget(1, false, now), Duration::ZERO);
        let later = now + Duration::from_millis(4);
        assert_eq!(policy.budget(1, true, later), BUDGET);
        assert!(policy.looks() > 1);
        // Again: twice as long. Much later: a new disturbance.
        assert!(policy.gave_up_core(Duration::from_millis(1), later));
        assert_eq!(policy.budget(1, true, later + Duration::from_millis(7)), Duration::ZERO);
        let calm = later + Duration::from_secs(1);
        assert!(policy.gave_up_core(Duration::from_millis(1), calm));
        assert_eq!(policy.budget(1, true, calm + Duration::from_millis(4)), BUDGET);
        assert!(policy.gave_up_core(Duration::from_secs(60), calm));
        assert_eq!(policy.budget(1, true, calm + PAUSE_MAX), BUDGET);
    }
}
