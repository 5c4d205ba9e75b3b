//! How a channel polls for completions before it sleeps, following [`promote::policy`].

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use promote::policy::{self, Next, Peer, Policy};
use rustix::thread::CpuSet;

use crate::config::Spin;

/// With more handles than this the kernel has enough to do while the channel sleeps: spinning
/// would only tear the batches apart, and cost the CPU that they save. Found on two virtual
/// machines with two cores.
const CROWD: u32 = 32;

/// A process, and below it how many of its threads spin. A fork copies the word: the process says
/// whose it is.
static SPINNING: AtomicU64 = AtomicU64::new(0);
const OWNER: u64 = 0xffff_ffff << 32;
/// How many may spin: the CPUs of all threads that have made channels.
static CPUS: AtomicU32 = AtomicU32::new(1);

pub(crate) struct Spinner {
    mode: Spin,
    policy: Policy,
    /// The peers to whose rings this channel wrote since the last wait.
    peer: Peer,
    /// Begin and end of the last sleep, on CLOCK_MONOTONIC, until its wake-up was measured.
    sleep: Option<(u64, u64)>,
    /// A connection came since the last wait.
    accepted: bool,
    process: u32,
}

impl Spinner {
    pub(crate) fn new(mode: Spin) -> Spinner {
        count_cpus();
        Spinner {
            mode,
            policy: Policy::of_channel(),
            peer: Peer::Unknown,
            sleep: None,
            accepted: false,
            process: std::process::id(),
        }
    }

    /// Whether the next wait of a channel with rings may spin.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        match self.mode {
            Spin::Off => false,
            Spin::For(_) => true,
            Spin::Auto => !self.accepted && self.policy.spins(self.peer),
        }
    }

    /// A wait of a channel with this many handles begins, for at most `limit`. `None`: it
    /// sleeps at once.
    #[inline]
    pub(crate) fn begin(&mut self, handles: u32, rings: bool, limit: Option<Duration>) -> Option<Spinning> {
        let spin = self.spin(handles, rings)?;
        let deadline = limit.and_then(|limit| spin.began().checked_add(limit));
        Spinning::begin(self.process, spin.ends_by(deadline))
    }

    /// Polling rings costs no system call, and is what promotion is for: spin whatever
    /// the number of handles.
    #[inline]
    fn spin(&mut self, handles: u32, rings: bool) -> Option<policy::Spin> {
        let peer = std::mem::take(&mut self.peer);
        match self.mode {
            Spin::Off => None,
            Spin::For(length) => Some(self.policy.spin(now(), length)),
            Spin::Auto if !rings && handles > CROWD => None,
            Spin::Auto => {
                if std::mem::take(&mut self.accepted) {
                    // Where connections come and go, independent clients make the load:
                    // an answer given sooner brings no request sooner (ADR 7).
                    self.policy.pause();
                }
                self.policy.begin(now(), peer)
            }
        }
    }

    /// After polls that found nothing: true if the spin goes on. Yields the core first,
    /// where another thread may want it. If one did, a channel without rings sleeps: a
    /// sleep that returns at once with what came meanwhile costs no more than a poll.
    pub(crate) fn goes_on(&mut self, Spinning(spin): &mut Spinning, rings: bool) -> bool {
        let mut at = now();
        let next = spin.next(at);
        if next == Next::Yield {
            let began = at;
            std::thread::yield_now();
            at = now();
            self.policy.yielded(spin, began, at);
        }
        let goes_on = next != Next::Sleep && (rings || !spin.gave_away());
        if !goes_on {
            self.policy.missed(spin, at);
        }
        goes_on
    }

    /// A spin found something.
    pub(crate) fn found(&mut self, Spinning(spin): &Spinning) {
        self.policy.found(spin, now());
    }

    /// The first polls found something, before the wait that [`Self::is_on`] allowed had
    /// begun.
    #[inline]
    pub(crate) fn found_at_once(&mut self) {
        self.policy.found_at_once(std::mem::take(&mut self.peer));
    }

    /// A write went into a ring, whose reader slept or did not.
    #[inline]
    pub(crate) fn wrote(&mut self, peer_slept: bool) {
        self.peer = self.peer.sent(peer_slept);
    }

    /// A connection came.
    #[inline]
    pub(crate) fn accepted(&mut self) {
        self.accepted = true;
    }

    /// A sleep has ended that began at this time of CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) fn slept(&mut self, began: u64) {
        self.sleep = Some((began, sys::clock::monotonic()));
    }

    /// A peer stored `at` as the time of its last wake-up call. It counts once, and only if it
    /// lies within the last sleep.
    pub(crate) fn woken_at(&mut self, at: u64) {
        if let Some((_, end)) = self.sleep.take_if(|(began, end)| (*began..=*end).contains(&at)) {
            self.policy.woke(Duration::from_nanos(end - at));
        }
    }
}

/// A spin of this thread, which counts in [`SPINNING`].
pub(crate) struct Spinning(policy::Spin);

impl Spinning {
    /// `None` if as many threads spin as there are CPUs: they would take the cores from each other.
    fn begin(process: u32, spin: policy::Spin) -> Option<Spinning> {
        let begin = |word| one_more(word, process, CPUS.load(Relaxed));
        SPINNING.fetch_update(Relaxed, Relaxed, begin).ok().map(|_| Spinning(spin))
    }
}

/// [`SPINNING`] with one more thread of this process, if there may be as many.
fn one_more(word: u64, process: u32, most: u32) -> Option<u64> {
    let owner = u64::from(process) << 32;
    let threads = if word & OWNER == owner { word & !OWNER } else { 0 };
    (threads < u64::from(most)).then_some(owner | (threads + 1))
}

impl Drop for Spinning {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Relaxed);
    }
}

fn now() -> Duration {
    Duration::from_nanos(sys::clock::monotonic())
}

/// Counts the CPUs of this thread, which makes a channel. Servers pin their threads, so
/// that none may use all CPUs of the process.
fn count_cpus() {
    static SEEN: [AtomicU64; CpuSet::MAX_CPU / 64] = [const { AtomicU64::new(0) }; CpuSet::MAX_CPU / 64];
    let Ok(own) = rustix::thread::sched_getaffinity(None) else { return };
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| own.is_set(cpu)) {
        SEEN[cpu / 64].fetch_or(1 << (cpu % 64), Relaxed);
    }
    CPUS.store(SEEN.iter().map(|word| word.load(Relaxed).count_ones()).sum(), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_crowd_is_not_spun_for_unless_it_has_rings() {
        let spins = |handles, rings| Spinner::new(Spin::Auto).spin(handles, rings).is_some();
        assert_eq!(
            [(CROWD, false), (CROWD + 1, false), (CROWD + 1, true)].map(|(h, r)| spins(h, r)),
            [true, false, true]
        );
    }

    #[test]
    fn connections_that_come_are_no_reason_to_spin() {
        let mut spinner = Spinner::new(Spin::Auto);
        // One of many that came at once, and each of those that come one by one.
        for pause in [1, 2, 4] {
            (0..100).for_each(|_| spinner.accepted());
            assert!(!spinner.is_on());
            assert_eq!((0..100).take_while(|_| spinner.spin(1, false).is_none()).count(), pause);
            assert!(spinner.is_on());
        }
    }

    #[test]
    fn a_time_counts_once_and_if_it_lies_in_the_sleep() {
        let mut spinner = Spinner::new(Spin::Auto);
        let (begin, end) = (5_000_000, 15_000_000);
        spinner.sleep = Some((begin, end));
        for at in [0, begin - 1, end + 1, u64::MAX] {
            spinner.woken_at(at);
            assert!(spinner.sleep.is_some());
        }
        spinner.woken_at(end - 40_000);
        assert_eq!(spinner.sleep, None);
        // 40 us: what a wait spins for is twice as long.
        let spin = spinner.spin(1, true).unwrap();
        assert_eq!(spin.next(spin.began() + 79 * US), Next::Yield);
        assert_eq!(spin.next(spin.began() + 80 * US), Next::Sleep);
        spinner.woken_at(begin);
        let same = spinner.spin(1, true).unwrap();
        assert_eq!(same.next(same.began() + 80 * US), Next::Sleep);
    }

    #[test]
    fn what_was_asked_for_is_kept_to() {
        for (mode, spins) in [(Spin::Off, false), (Spin::For(US), true), (Spin::For(Duration::MAX), true)] {
            let mut spinner = Spinner::new(mode);
            spinner.accepted();
            assert_eq!(spinner.spin(CROWD + 1, false).is_some(), spins);
            assert_eq!(spinner.is_on(), spins);
        }
    }

    #[test]
    fn as_many_threads_spin_as_there_are_cpus() {
        let first = one_more(0, 7, 2).unwrap();
        let second = one_more(first, 7, 2).unwrap();
        assert_eq!(one_more(second, 7, 2), None);
        // A child begins at none, whatever it copied.
        let of_child = one_more(second, 8, 1).unwrap();
        assert_eq!((of_child & !OWNER, one_more(of_child, 8, 1)), (1, None));
    }
}
