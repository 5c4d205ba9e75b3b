//! How long a wait spins for messages before it sleeps. The caller passes the times;
//! nothing here reads a clock.
//!
//! 1. W is the duration of a wake-up on this machine: the mean of the smaller half of the
//!    last 16 that this thread measured, from the peer's call to the return from the
//!    sleep; 5 to 300 us, and 25 before the first. (The greater half queued for the
//!    core.)
//! 2. A wait spins for 2 W; for 3 W if this thread has woken the peer since its last
//!    wait, since the peer wakes up before it answers.
//! 3. An account of at most 8 W. Each spin costs half of its time. It costs all of it if
//!    a yield of the spin ran other threads: most likely the peer, for whose answer it
//!    waits. A spin that finds something earns W; for data of the kernel, which is polled
//!    only now and then, W less the time that the data had waited. It earns nothing if
//!    this thread had woken the peer for it: where one endpoint is asleep each time, as
//!    at a fixed rate, the other spins through its wake-ups, and uses more of the core
//!    than it saves. A channel, whose sleep costs more, always earns W.
//! 4. Below -2 W waits sleep at once: one, then 2, 4 .. 512 of them, after which the
//!    account begins at 0. Above 4 W the next such pause is of one wait again. Once in a
//!    pause, a wait for a peer that was awake when this thread sent to it spins even so:
//!    the peer tries whether spinning pays, and finds that it does only if both try. If
//!    the wait finds something, the pause is over.
//! 5. Between polls the core is yielded; in the first 4 us only if one of the last 16
//!    yields ran another thread for less than 100 us, which is most likely the peer. The
//!    second yield that ran others without bringing a message ends the spin, which is
//!    charged their time, too, up to 2 W.
//! 6. A longer yield ran busy threads, which release the core when their time slices end,
//!    while a sleeping thread is woken before. For 64 times as long no spin yields, or
//!    lasts longer than W; none begins if W shows that a sleeping thread queues for the
//!    core, too.
//!
//! Unit tests check most constants one by one; `simulation` checks them together, by the
//! gains and costs of two programs.

use std::time::Duration;

#[cfg(test)]
mod simulation;

const WAKE_UP_INITIAL: Duration = Duration::from_micros(25);
const WAKE_UP_MIN: Duration = Duration::from_micros(5);
/// No peer can make a wait spin for more than three times as long.
const WAKE_UP_MAX: Duration = Duration::from_micros(300);
const MEASURED: usize = 16;
/// Waits of one pause.
const LONGEST_PAUSE: u32 = 512;
/// How long a spin does not yield a core that it had for itself.
const UNSHARED: Duration = Duration::from_micros(4);
/// A yield that takes longer ran another thread: a switch there and back.
const RAN_OTHERS: Duration = Duration::from_nanos(800);
/// A yield that takes longer ran others to the end of their time slices.
const CROWDED: Duration = Duration::from_micros(100);
/// A longer gap is not a running thread: a debugger, or a suspended machine.
const LONGEST_SLICE: Duration = Duration::from_millis(50);
/// Factor by which the crowded period is longer than such a yield.
const CROWDED_FOR: u32 = 64;
/// After this many yields in a row that ran no other thread, the core counts as unshared.
const UNSHARED_AFTER: u8 = 16;
/// Yields of one spin that ran others, after which it ends.
const MOST_YIELDS_TO_OTHERS: u32 = 2;

/// The peer, when this thread last sent to it before a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// Nothing was sent.
    #[default]
    Unknown,
    /// It was awake.
    Awake,
    /// It slept, and this thread has woken it: of several peers, at least one.
    Woken,
}

impl Peer {
    /// After a send to a peer that was awake, or that was woken for it.
    #[inline]
    pub fn sent(self, woken: bool) -> Peer {
        if woken || self == Peer::Woken { Peer::Woken } else { Peer::Awake }
    }
}

/// One thread's account.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Nanoseconds.
    wake_ups: [u32; MEASURED],
    measured: usize,
    wake_up: Duration,
    /// Nanoseconds.
    credit: i64,
    /// Remaining waits that sleep at once, and their number in the next pause.
    skip: u32,
    pause: u32,
    /// One of the waits of this pause has spun.
    tried: bool,
    /// Remaining yields that yield the core at once, since one of them ran another thread
    /// for a while: a fair scheduler runs that thread only when it has had less time than
    /// this one.
    eager_yields: u8,
    /// Other threads use the core until then.
    crowded_until: Duration,
    /// See [`Policy::of_channel`].
    is_channel: bool,
}

/// The spin of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    began: Duration,
    until: Duration,
    /// When it may yield.
    unshared_until: Duration,
    /// This thread has woken the peer for it.
    woke_peer: bool,
    /// The time for which others had the core.
    yielded_time: Duration,
    yields_to_others: u32,
}

/// The next step after a poll without finding anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Poll again.
    Poll,
    /// Yield the core, call [`Policy::yielded`], and poll again.
    Yield,
    /// Call [`Policy::missed`], and sleep.
    Sleep,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new()
    }
}

impl Policy {
    /// For a thread that has not waited.
    pub const fn new() -> Policy {
        Policy {
            wake_ups: [0; MEASURED],
            measured: 0,
            wake_up: WAKE_UP_INITIAL,
            credit: 0,
            skip: 0,
            pause: 1,
            tried: false,
            eager_yields: UNSHARED_AFTER,
            crowded_until: Duration::ZERO,
            is_channel: false,
        }
    }

    /// For a channel that has not waited: a spin through the wake-up of a peer that it
    /// has woken earns W, too.
    pub fn of_channel() -> Policy {
        Policy { is_channel: true, ..Policy::new() }
    }

    /// Whether the next wait spins before it sleeps.
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
        let woke_peer = peer == Peer::Woken;
        let wake_ups = if is_crowded { 1 } else { 2 + u32::from(woke_peer) };
        Some(Spin { woke_peer, ..self.spin(now, self.wake_up * wake_ups) })
    }

    /// An explicitly requested spin of this length.
    pub fn spin(&self, now: Duration, length: Duration) -> Spin {
        let unshared = match () {
            () if now < self.crowded_until => length,
            () if self.eager_yields > 0 => Duration::ZERO,
            () => UNSHARED,
        };
        let (until, unshared_until) = (now.saturating_add(length), now.saturating_add(unshared));
        Spin {
            began: now,
            until,
            unshared_until,
            woke_peer: false,
            yielded_time: Duration::ZERO,
            yields_to_others: 0,
        }
    }

    /// A yield of this spin took from `began` to `now`; the next poll determines whether
    /// it brought a message.
    pub fn yielded(&mut self, spin: &mut Spin, began: Duration, now: Duration) {
        let took = now.saturating_sub(began);
        let ran_the_peer = (RAN_OTHERS..CROWDED).contains(&took);
        self.eager_yields = if ran_the_peer { UNSHARED_AFTER } else { self.eager_yields.saturating_sub(1) };
        if took > RAN_OTHERS {
            spin.yielded_time += took;
            spin.yields_to_others += 1;
        }
        if took > CROWDED {
            self.crowded_until = now + took.min(LONGEST_SLICE) * CROWDED_FOR;
        }
    }

    /// A spin found something at `now`. Returns the wake-up time that it saved.
    #[inline]
    pub fn found(&mut self, spin: &Spin, now: Duration) -> Duration {
        self.credit_find(spin.woke_peer, spin.cost(now))
    }

    /// The same for data that is found `after` its arrival, on average: a sleep gets it a
    /// wake-up time after.
    pub fn found_late(&mut self, spin: &Spin, now: Duration, after: Duration) -> Duration {
        let gain = self.wake_up.saturating_sub(after);
        self.settle(nanoseconds(gain), nanoseconds(spin.cost(now)));
        gain
    }

    /// The same for a wait that found something in so few polls that it read no clock.
    #[inline]
    pub fn found_at_once(&mut self, peer: Peer) {
        self.credit_find(peer == Peer::Woken, Duration::ZERO);
    }

    fn credit_find(&mut self, woke_peer: bool, cost: Duration) -> Duration {
        self.skip = 0;
        let gain = if woke_peer && !self.is_channel { Duration::ZERO } else { self.wake_up };
        self.settle(nanoseconds(gain), nanoseconds(cost));
        gain
    }

    /// A spin ended at `now`, and the wait sleeps.
    pub fn missed(&mut self, spin: &Spin, now: Duration) {
        let away = spin.yielded_time.min(self.wake_up * 2);
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

    /// Waits sleep at once from here on, as many as rule 4 states.
    pub fn pause(&mut self) {
        (self.skip, self.pause) = (self.pause, (self.pause * 2).min(LONGEST_PAUSE));
        self.tried = false;
        self.credit = 0;
    }

    /// A sleep ended this long after the peer's call.
    pub fn woke(&mut self, after: Duration) {
        self.wake_ups[self.measured % MEASURED] = after.as_nanos().try_into().unwrap_or(u32::MAX);
        self.measured += 1;
        let mut known = self.wake_ups;
        let known = &mut known[..self.measured.min(MEASURED)];
        let count = known.len().div_ceil(2);
        known.select_nth_unstable(count - 1);
        let half = &known[..count];
        let mean = half.iter().map(|nanoseconds| u64::from(*nanoseconds)).sum::<u64>() / half.len() as u64;
        self.wake_up = Duration::from_nanos(mean).clamp(WAKE_UP_MIN, WAKE_UP_MAX);
    }
}

impl Spin {
    /// The same spin, ending at `deadline` at the latest.
    pub fn ends_by(self, deadline: Option<Duration>) -> Spin {
        Spin { until: deadline.map_or(self.until, |deadline| deadline.min(self.until)), ..self }
    }

    /// When it began.
    pub fn began(&self) -> Duration {
        self.began
    }

    /// The next step after a poll at `now` without finding anything.
    #[inline]
    pub fn next(&self, now: Duration) -> Next {
        if now >= self.until || self.was_crowded() {
            Next::Sleep
        } else if now < self.unshared_until {
            Next::Poll
        } else {
            Next::Yield
        }
    }

    /// Whether a yield has run others.
    pub fn gave_away(&self) -> bool {
        self.yields_to_others > 0
    }

    /// Whether others need the core.
    pub fn was_crowded(&self) -> bool {
        self.yields_to_others >= MOST_YIELDS_TO_OTHERS
    }

    /// Half of its time on the core; all of it where the peer most likely shares the
    /// core, and did not run meanwhile.
    fn cost(&self, now: Duration) -> Duration {
        let spent = self.spent(now);
        if self.gave_away() { spent } else { spent / 2 }
    }

    /// Its time on the core until `now`.
    pub fn spent(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began).saturating_sub(self.yielded_time)
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

    /// The number of waits that sleep at once from here on.
    fn pause(policy: &mut Policy) -> u32 {
        (0..1000).take_while(|_| policy.begin(US, Peer::Unknown).is_none()).count() as u32
    }

    #[test]
    fn misses_are_followed_by_longer_and_longer_pauses() {
        let mut policy = Policy::new();
        let pauses: Vec<u32> = (0..11)
            .map(|_| {
                // A miss costs W: the account allows two, and the third starts a pause.
                (0..3).for_each(|_| misses(&mut policy));
                pause(&mut policy)
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512]);
        // One find does not reset the pauses to short ones; five do.
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
    fn a_pause_ends_if_the_peer_tries() {
        for finds in [true, false] {
            let mut policy = Policy { skip: 100, pause: 128, ..Policy::new() };
            assert!(policy.begin(US, Peer::Woken).is_none());
            let spin = policy.begin(US, Peer::Unknown.sent(false)).unwrap();
            if finds {
                policy.found(&spin, US);
            } else {
                policy.missed(&spin, spin.until);
                assert!(policy.begin(US, Peer::Awake).is_none(), "it does not spin again");
            }
            assert_eq!(pause(&mut policy), if finds { 0 } else { 97 });
        }
    }

    #[test]
    fn a_find_at_once_counts_as_well() {
        for (peer, is_channel, credit) in [
            (Peer::Unknown, false, 25_000),
            (Peer::Awake, false, 25_000),
            (Peer::Woken, false, 0),
            (Peer::Woken, true, 25_000),
        ] {
            let mut policy = Policy { skip: 100, is_channel, ..Policy::new() };
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
    fn a_woken_peer_gets_time_to_wake_up() {
        let mut policy = Policy::new();
        let until = |policy: &mut Policy, peer| policy.begin(US, peer).unwrap().until - US;
        let [one, two] =
            [Peer::Awake, Peer::Unknown.sent(true).sent(false)].map(|peer| until(&mut policy, peer));
        assert_eq!((one, two), (2 * WAKE_UP_INITIAL, 3 * WAKE_UP_INITIAL));
    }

    #[test]
    fn a_queue_for_the_core_is_no_wake_up() {
        let mut policy = Policy::new();
        for sample in 0..2 * MEASURED as u32 {
            policy.woke(if sample % 2 == 0 { 10 * US } else { 3000 * US });
        }
        assert_eq!(policy.wake_up, 10 * US);
        // Nor does it matter which clock is wrong.
        (0..MEASURED).for_each(|_| policy.woke(Duration::MAX / 64));
        assert_eq!(policy.wake_up, WAKE_UP_MAX);
        (0..MEASURED).for_each(|_| policy.woke(Duration::ZERO));
        assert_eq!(policy.wake_up, WAKE_UP_MIN);
    }

    #[test]
    fn the_core_is_yielded_to_the_peer() {
        let mut policy = Policy::new();
        let mut spin = policy.begin(US, Peer::Unknown).unwrap();
        assert_eq!(spin.next(US), Next::Yield);
        (0..UNSHARED_AFTER).for_each(|_| policy.yielded(&mut spin, US, US + RAN_OTHERS / 2));
        assert_eq!(policy.begin(US, Peer::Unknown).unwrap().next(US), Next::Poll);
        assert_eq!(policy.begin(US, Peer::Unknown).unwrap().next(US + UNSHARED), Next::Yield);
        for _ in 0..MOST_YIELDS_TO_OTHERS {
            assert_eq!(spin.next(US), Next::Yield);
            policy.yielded(&mut spin, US, 11 * US);
        }
        assert_eq!(spin.next(US), Next::Sleep);
        assert_eq!(policy.begin(US, Peer::Unknown).unwrap().next(US), Next::Yield);
        policy.missed(&spin, 21 * US);
        assert_eq!(policy.credit, -20_000);
    }

    #[test]
    fn a_spin_costs_more_on_a_core_shared_with_the_peer() {
        for (ran, credit) in [(RAN_OTHERS / 2, 23_000), (10 * US, 21_000)] {
            let mut policy = Policy::new();
            let mut spin = policy.begin(US, Peer::Unknown).unwrap();
            policy.yielded(&mut spin, US, US + ran);
            policy.found(&spin, 5 * US + if spin.gave_away() { ran } else { Duration::ZERO });
            assert_eq!(policy.credit, credit);
        }
    }

    #[test]
    fn yields_to_busy_threads_are_rare() {
        let mut policy = Policy::new();
        let mut spin = policy.begin(US, Peer::Unknown).unwrap();
        let back = 3001 * US;
        policy.yielded(&mut spin, US, back);
        let spin = policy.begin(back, Peer::Unknown).unwrap();
        let end = back + policy.wake_up;
        assert_eq!((spin.next(end - US), spin.next(end)), (Next::Poll, Next::Sleep));
        // Nor does one begin if a sleeping thread waits in the same queue; it does not
        // count for a pause.
        let mut queues = Policy { skip: 3, ..policy };
        (0..MEASURED).for_each(|_| queues.woke(CROWDED));
        assert!(queues.begin(back, Peer::Awake).is_none() && queues.skip == 3);
        // An explicit length is observed.
        assert_eq!(policy.spin(back, 1000 * US).until, back + 1000 * US);
        let later = back + 3000 * US * CROWDED_FOR;
        assert_eq!(policy.begin(later, Peer::Unknown).unwrap().next(later + UNSHARED), Next::Yield);
        // A debugger stopped the process for an hour.
        let mut spin = policy.begin(later, Peer::Unknown).unwrap();
        let back = later + Duration::from_secs(3600);
        policy.yielded(&mut spin, later, back);
        let later = back + LONGEST_SLICE * CROWDED_FOR;
        assert_eq!(policy.begin(later, Peer::Unknown).unwrap().next(later + UNSHARED), Next::Yield);
    }
}
