//! How long a wait looks for messages before it sleeps. Whoever waits brings the times; nothing here asks for one.
//!
//! 1. W is what a wake-up takes on this machine: the mean of the smaller half of the last 16 that this thread has seen, from
//!    the other end's call to its return from the sleep; 5 to 300 us, and 25 until one was seen. (The greater half had a queue
//!    for the core before it.)
//! 2. A wait spins for 2 W; for 3 W if this thread has woken the other end since its last wait, which wakes before it answers.
//! 3. An account, of 8 W at most: each spin costs half of the time that it took, or all of it where a yield of it ran others,
//!    most likely the other end, whose answer it waits for; and one that finds something brings W (of the kernel's, which is
//!    asked now and then, W less what it has waited for that),
//!    unless this thread had woken the other end for it: where one end is asleep each time, as at a fixed rate, the other
//!    spins through its wake-ups, and takes more of the core than it saves. Of a channel, whose sleep costs more, all do.
//! 4. Below -2 W waits sleep at once: one, then 2, 4 .. 512 of them, after which the account begins at 0. Above 4 W the next
//!    such pause is of one wait again. A wait for an end that was awake when it was sent to spins even so, once in a pause:
//!    that end tries whether it pays, and finds that only if both do. If it finds something, the pause is over.
//! 5. Between looks the core is yielded; in the first 4 us only if one of the last 16 yields ran another thread for less
//!    than 100 us, which is the other end, most likely. The second yield that ran others and brought no message ends the
//!    spin, which costs what they took, too, up to 2 W.
//! 6. A yield that took longer met others at work, who leave when their time slices end, while a sleeper is woken
//!    before. For 64 times as long no spin yields, nor lasts longer than W; none begins where W says that a sleeper queues for
//!    the core, too.
//!
//! Tests hold most constants one by one; `simulation` holds them together, by what two programs gain and pay.

use std::time::Duration;

#[cfg(test)]
mod simulation;

const WAKE_UP_GUESS: Duration = Duration::from_micros(25);
const WAKE_UP_LEAST: Duration = Duration::from_micros(5);
/// No other end can have a wait spin for more than thrice as long.
const WAKE_UP_MOST: Duration = Duration::from_micros(300);
const SEEN: usize = 16;
/// Waits of one pause.
const PAUSE_MOST: u32 = 512;
/// What a spin does not give away of a core that it had for itself.
const ALONE: Duration = Duration::from_micros(4);
/// A yield that takes longer ran another thread: a switch there and back.
const RAN_OTHERS: Duration = Duration::from_nanos(800);
/// One that takes longer ran others to the end of their time slices.
const CROWDED: Duration = Duration::from_micros(100);
/// What has the core for longer is no thread at work: a debugger, a machine that was stopped.
const SLICE_MOST: Duration = Duration::from_millis(50);
/// Times as long as such a yield took.
const CROWDED_FOR: u32 = 64;
/// Yields in a row that run nobody until the core counts as this thread's alone.
const SHARES: u8 = 16;
/// Yields of one spin that run others.
const GIVEN_AWAY: u32 = 2;

/// The other end, when this thread last sent to it before a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// Nothing was sent.
    #[default]
    Unknown,
    /// It was awake.
    Awake,
    /// It slept, and this thread has woken it: of several, one at least.
    Woken,
}

impl Peer {
    /// Something was sent to one that was awake, or that was woken for it.
    #[inline]
    pub fn sent(self, woken: bool) -> Peer {
        if woken || self == Peer::Woken { Peer::Woken } else { Peer::Awake }
    }
}

/// One thread's account.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Nanoseconds.
    wake_ups: [u32; SEEN],
    seen: usize,
    wake_up: Duration,
    /// Nanoseconds.
    credit: i64,
    /// Waits left that sleep at once, and how many do the next time.
    skip: u32,
    pause: u32,
    /// One of the waits of this pause has spun.
    tried: bool,
    /// Yields left of those that give the core away at once, since one of them ran another thread for a while: a fair
    /// scheduler runs it only when it has had less than this one.
    shares: u8,
    /// Others are at work on the core until then.
    crowded_until: Duration,
    /// See [`Policy::of_channel`].
    through: bool,
}

/// One wait's looks.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    began: Duration,
    until: Duration,
    /// When it may yield.
    alone_until: Duration,
    /// This thread has woken the other end for it.
    rang: bool,
    /// That others had the core.
    away: Duration,
    given_away: u32,
}

/// What comes after a look in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another look.
    Look,
    /// The same, once others had the core: [`Policy::yielded`].
    Yield,
    /// The sleep: [`Policy::missed`].
    Sleep,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new()
    }
}

impl Policy {
    /// Of a thread that has not waited.
    pub const fn new() -> Policy {
        Policy {
            wake_ups: [0; SEEN],
            seen: 0,
            wake_up: WAKE_UP_GUESS,
            credit: 0,
            skip: 0,
            pause: 1,
            tried: false,
            shares: SHARES,
            crowded_until: Duration::ZERO,
            through: false,
        }
    }

    /// Of a channel that has not waited: a spin through the wake-up of an end that it has woken brings W, too.
    pub fn of_channel() -> Policy {
        Policy { through: true, ..Policy::new() }
    }

    /// Whether the next wait looks before it sleeps.
    #[inline]
    pub fn spins(&self, peer: Peer) -> bool {
        self.skip == 0 || (peer == Peer::Awake && !self.tried)
    }

    /// A wait begins. `None`: it sleeps at once.
    #[inline]
    pub fn begin(&mut self, now: Duration, peer: Peer) -> Option<Spin> {
        let is_crowded = now < self.crowded_until;
        if is_crowded && self.wake_up >= CROWDED {
            return None;
        }
        let spins = self.spins(peer);
        if self.skip > 0 {
            self.skip -= 1;
            self.tried |= spins;
        }
        if !spins {
            return None;
        }
        let rang = peer == Peer::Woken;
        let wake_ups = if is_crowded { 1 } else { 2 + u32::from(rang) };
        Some(Spin { rang, ..self.spin(now, self.wake_up * wake_ups) })
    }

    /// A spin that was asked for, of that length.
    pub fn spin(&self, now: Duration, length: Duration) -> Spin {
        let alone = match () {
            () if now < self.crowded_until => length,
            () if self.shares > 0 => Duration::ZERO,
            () => ALONE,
        };
        let (until, alone_until) = (now.saturating_add(length), now.saturating_add(alone));
        Spin { began: now, until, alone_until, rang: false, away: Duration::ZERO, given_away: 0 }
    }

    /// A yield of this spin took from `began` to `now`; the next look tells whether it brought a message.
    pub fn yielded(&mut self, spin: &mut Spin, began: Duration, now: Duration) {
        let took = now.saturating_sub(began);
        let ran_the_other = (RAN_OTHERS..CROWDED).contains(&took);
        self.shares = if ran_the_other { SHARES } else { self.shares.saturating_sub(1) };
        if took > RAN_OTHERS {
            spin.away += took;
            spin.given_away += 1;
        }
        if took > CROWDED {
            self.crowded_until = now + took.min(SLICE_MOST) * CROWDED_FOR;
        }
    }

    /// A spin found something at `now`. Returns what it saved of a wake-up.
    #[inline]
    pub fn found(&mut self, spin: &Spin, now: Duration) -> Duration {
        self.met(spin.rang, spin.cost(now))
    }

    /// The same of something that is found `after` it came, on average: a sleep has it a wake-up after.
    pub fn found_late(&mut self, spin: &Spin, now: Duration, after: Duration) -> Duration {
        let gain = self.wake_up.saturating_sub(after);
        self.settle(nanoseconds(gain), nanoseconds(spin.cost(now)));
        gain
    }

    /// The same of a wait that found it in so few looks that it asked for no time.
    #[inline]
    pub fn found_at_once(&mut self, peer: Peer) {
        self.met(peer == Peer::Woken, Duration::ZERO);
    }

    fn met(&mut self, rang: bool, cost: Duration) -> Duration {
        self.skip = 0;
        let gain = if rang && !self.through { Duration::ZERO } else { self.wake_up };
        self.settle(nanoseconds(gain), nanoseconds(cost));
        gain
    }

    /// A spin ended at `now`, and the wait sleeps.
    pub fn missed(&mut self, spin: &Spin, now: Duration) {
        let away = spin.away.min(self.wake_up * 2);
        self.settle(0, nanoseconds(spin.cost(now) + away));
    }

    fn settle(&mut self, gain: i64, cost: i64) {
        let wake_up = nanoseconds(self.wake_up);
        self.credit = self.credit.saturating_add(gain).saturating_sub(cost).min(8 * wake_up);
        if self.credit < -2 * wake_up {
            self.pause();
        } else if self.credit > 4 * wake_up {
            self.pause = 1;
        }
    }

    /// Waits sleep at once from here on, as many as rule 4 has.
    pub fn pause(&mut self) {
        (self.skip, self.pause) = (self.pause, (self.pause * 2).min(PAUSE_MOST));
        self.tried = false;
        self.credit = 0;
    }

    /// A sleep ended so long after the other end's call.
    pub fn woke(&mut self, after: Duration) {
        self.wake_ups[self.seen % SEEN] = after.as_nanos().try_into().unwrap_or(u32::MAX);
        self.seen += 1;
        let mut known = self.wake_ups;
        let known = &mut known[..self.seen.min(SEEN)];
        let count = known.len().div_ceil(2);
        known.select_nth_unstable(count - 1);
        let half = &known[..count];
        let mean = half.iter().map(|nanoseconds| u64::from(*nanoseconds)).sum::<u64>() / half.len() as u64;
        self.wake_up = Duration::from_nanos(mean).clamp(WAKE_UP_LEAST, WAKE_UP_MOST);
    }
}

impl Spin {
    /// The same, with an end at `deadline` at the latest.
    pub fn ends_by(self, deadline: Option<Duration>) -> Spin {
        Spin { until: deadline.map_or(self.until, |deadline| deadline.min(self.until)), ..self }
    }

    /// When it began.
    pub fn began(&self) -> Duration {
        self.began
    }

    /// After a look in vain, at `now`.
    #[inline]
    pub fn next(&self, now: Duration) -> Next {
        if now >= self.until || self.was_crowded() {
            Next::Sleep
        } else if now < self.alone_until {
            Next::Look
        } else {
            Next::Yield
        }
    }

    /// Whether a yield has run others.
    pub fn gave_away(&self) -> bool {
        self.given_away > 0
    }

    /// Whether others want the core.
    pub fn was_crowded(&self) -> bool {
        self.given_away >= GIVEN_AWAY
    }

    /// Half of what it had of its core; all of it where that is most likely the other end's, too, which did not run meanwhile.
    fn cost(&self, now: Duration) -> Duration {
        let spent = self.spent(now);
        if self.gave_away() { spent } else { spent / 2 }
    }

    /// What it had of its core until `now`.
    pub fn spent(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began).saturating_sub(self.away)
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn misses(policy: &mut Policy) {
        let spin = policy.begin(US, Peer::Unknown).unwrap();
        policy.missed(&spin, spin.until);
    }

    /// Waits that sleep at once from here on.
    fn pause(policy: &mut Policy) -> u32 {
        (0..1000).take_while(|_| policy.begin(US, Peer::Unknown).is_none()).count() as u32
    }

    #[test]
    fn misses_are_followed_by_longer_and_longer_pauses() {
        let mut policy = Policy::new();
        let pauses: Vec<u32> = (0..11)
            .map(|_| {
                // 3 W / 2 below nothing, twice: a third one is not put up with.
                (0..3).for_each(|_| misses(&mut policy));
                pause(&mut policy)
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512]);
        // One find is no reason to begin with short ones; five are.
        for (finds, pauses) in [(1, 512), (6, 1)] {
            policy.credit = 0;
            for _ in 0..finds {
                let spin = policy.begin(US, Peer::Unknown).unwrap();
                policy.found(&spin, US);
            }
            while policy.skip == 0 {
                misses(&mut policy);
            }
            assert_eq!(pause(&mut policy), pauses);
        }
    }

    #[test]
    fn a_pause_ends_where_the_other_end_tries() {
        for finds in [true, false] {
            let mut policy = Policy { skip: 100, pause: 128, ..Policy::new() };
            assert!(policy.begin(US, Peer::Woken).is_none());
            let spin = policy.begin(US, Peer::Unknown.sent(false)).unwrap();
            if finds {
                policy.found(&spin, US);
            } else {
                policy.missed(&spin, spin.until);
                assert!(policy.begin(US, Peer::Awake).is_none(), "it is not tried again");
            }
            assert_eq!(pause(&mut policy), if finds { 0 } else { 97 });
        }
    }

    #[test]
    fn what_is_found_at_once_counts_as_well() {
        for (peer, through, credit) in [
            (Peer::Unknown, false, 25_000),
            (Peer::Awake, false, 25_000),
            (Peer::Woken, false, 0),
            (Peer::Woken, true, 25_000),
        ] {
            let mut policy = Policy { skip: 100, through, ..Policy::new() };
            policy.found_at_once(peer);
            assert_eq!((policy.credit, pause(&mut policy)), (credit, 0));
        }
    }

    #[test]
    fn an_account_is_no_reserve_for_long() {
        let mut policy = Policy::new();
        for _ in 0..1000 {
            let spin = policy.begin(US, Peer::Unknown).unwrap();
            policy.found(&spin, US);
        }
        // 10 W: two more misses than at the beginning.
        let count = std::iter::from_fn(|| (policy.skip == 0).then(|| misses(&mut policy))).count();
        assert_eq!(count, 11);
    }

    #[test]
    fn whoever_was_woken_is_given_time_to() {
        let mut policy = Policy::new();
        let until = |policy: &mut Policy, peer| policy.begin(US, peer).unwrap().until - US;
        let [one, two] =
            [Peer::Awake, Peer::Unknown.sent(true).sent(false)].map(|peer| until(&mut policy, peer));
        assert_eq!((one, two), (2 * WAKE_UP_GUESS, 3 * WAKE_UP_GUESS));
    }

    #[test]
    fn a_queue_for_the_core_is_no_wake_up() {
        let mut policy = Policy::new();
        for seen in 0..2 * SEEN as u32 {
            policy.woke(if seen % 2 == 0 { 10 * US } else { 3000 * US });
        }
        assert_eq!(policy.wake_up, 10 * US);
        // Nor does it matter whose clock is wrong.
        (0..SEEN).for_each(|_| policy.woke(Duration::MAX / 64));
        assert_eq!(policy.wake_up, WAKE_UP_MOST);
        (0..SEEN).for_each(|_| policy.woke(Duration::ZERO));
        assert_eq!(policy.wake_up, WAKE_UP_LEAST);
    }

    #[test]
    fn the_core_is_given_to_the_other_end() {
        let mut policy = Policy::new();
        let mut spin = policy.begin(US, Peer::Unknown).unwrap();
        assert_eq!(spin.next(US), Next::Yield);
        (0..SHARES).for_each(|_| policy.yielded(&mut spin, US, US + RAN_OTHERS / 2));
        assert_eq!(policy.begin(US, Peer::Unknown).unwrap().next(US), Next::Look);
        assert_eq!(policy.begin(US, Peer::Unknown).unwrap().next(US + ALONE), Next::Yield);
        for _ in 0..GIVEN_AWAY {
            assert_eq!(spin.next(US), Next::Yield);
            policy.yielded(&mut spin, US, 11 * US);
        }
        assert_eq!(spin.next(US), Next::Sleep);
        assert_eq!(policy.begin(US, Peer::Unknown).unwrap().next(US), Next::Yield);
        policy.missed(&spin, 21 * US);
        assert_eq!(policy.credit, -20_000);
    }

    #[test]
    fn a_spin_costs_more_on_a_core_that_the_other_end_shares() {
        for (ran, credit) in [(RAN_OTHERS / 2, 23_000), (10 * US, 21_000)] {
            let mut policy = Policy::new();
            let mut spin = policy.begin(US, Peer::Unknown).unwrap();
            policy.yielded(&mut spin, US, US + ran);
            policy.found(&spin, 5 * US + if spin.gave_away() { ran } else { Duration::ZERO });
            assert_eq!(policy.credit, credit);
        }
    }

    #[test]
    fn others_at_work_are_met_rarely() {
        let mut policy = Policy::new();
        let mut spin = policy.begin(US, Peer::Unknown).unwrap();
        let back = 3001 * US;
        policy.yielded(&mut spin, US, back);
        let spin = policy.begin(back, Peer::Unknown).unwrap();
        let end = back + policy.wake_up;
        assert_eq!((spin.next(end - US), spin.next(end)), (Next::Look, Next::Sleep));
        // Nor does one begin where a sleeper waits in the same queue; in a pause none counts.
        let mut queues = Policy { skip: 3, ..policy };
        (0..SEEN).for_each(|_| queues.woke(CROWDED));
        assert!(queues.begin(back, Peer::Awake).is_none() && queues.skip == 3);
        // What was asked for is kept to.
        assert_eq!(policy.spin(back, 1000 * US).until, back + 1000 * US);
        let later = back + 3000 * US * CROWDED_FOR;
        assert_eq!(policy.begin(later, Peer::Unknown).unwrap().next(later + ALONE), Next::Yield);
        // A debugger had the process for an hour.
        let mut spin = policy.begin(later, Peer::Unknown).unwrap();
        let back = later + Duration::from_secs(3600);
        policy.yielded(&mut spin, later, back);
        let later = back + SLICE_MOST * CROWDED_FOR;
        assert_eq!(policy.begin(later, Peer::Unknown).unwrap().next(later + ALONE), Next::Yield);
    }
}
