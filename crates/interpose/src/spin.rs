//! How a thread spins for messages before it sleeps: see [`promote::policy`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use promote::policy::{Next, Peer, Policy, Spin};

use crate::clock::{self, Instant};
use crate::quota;
use crate::stats::{COUNTERS, count};

/// Pause instructions between two reads of the clock.
const PAUSES: u32 = 15;

/// A thread that spins on rings asks the kernel for events at least this often.
pub(crate) const KERNEL_EVERY: Duration = Duration::from_micros(50);

/// Set once: nanoseconds of every spin, plus 1; 0: adaptive.
static FIXED: AtomicU64 = AtomicU64::new(0);
/// Threads of this process that spin, and their limit: its CPUs.
static SPINNING: AtomicU32 = AtomicU32::new(0);
static CPUS: AtomicU32 = AtomicU32::new(u32::MAX);

thread_local! {
    static POLICY: Cell<Policy> = const { Cell::new(Policy::new()) };
    /// This thread counts in `SPINNING`.
    static SPINS: Cell<bool> = const { Cell::new(false) };
    /// See [`tally`].
    static UNPUBLISHED: Cell<[Duration; 2]> = const { Cell::new([Duration::ZERO; 2]) };
    /// The peers that it has sent to since its last wait.
    static SENT_TO: Cell<Peer> = const { Cell::new(Peer::Unknown) };
}

/// To be called at the start. `spin`: the setting.
pub(crate) fn start(spin: Option<Duration>) {
    let value = spin.map_or(0, |spin| u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX - 1) + 1);
    FIXED.store(value, Ordering::Relaxed);
    quota::start();
    if let Ok(cpus) = rustix::thread::sched_getaffinity(None) {
        CPUS.store(cpus.count(), Ordering::Relaxed);
    }
}

/// In the child of a fork, whose only thread is not spinning.
pub(crate) fn forked() {
    SPINNING.store(0, Ordering::Relaxed);
    SPINS.set(false);
}

/// This thread has sent to a peer, which was awake or was woken.
#[inline]
pub(crate) fn sent(woken: bool) {
    SENT_TO.set(SENT_TO.get().sent(woken));
}

fn learn<T>(change: impl FnOnce(&mut Policy) -> T) -> T {
    // A copy: a signal handler may wait, too.
    let mut policy = POLICY.get();
    let outcome = change(&mut policy);
    POLICY.set(policy);
    outcome
}

/// One wait of this thread.
pub(crate) struct Wait {
    spin: Option<Spin>,
    polls: u32,
    /// When the kernel has to be asked.
    kernel_due: Instant,
}

impl Wait {
    /// Begins a wait that ends at `deadline` at the latest.
    pub(crate) fn new(deadline: Option<Instant>) -> Wait {
        let now = clock::now();
        end_spin();
        let peer = SENT_TO.take();
        let spin = match FIXED.load(Ordering::Relaxed) {
            0 => learn(|policy| policy.begin(now, peer)),
            fixed => Some(POLICY.get().spin(now, Duration::from_nanos(fixed - 1))),
        };
        let spin = spin.map(|spin| spin.ends_by(deadline)).filter(|spin| spin.next(now) != Next::Sleep);
        // If both endpoints share a core nothing comes before the peer has run.
        let yields_first = spin.as_ref().is_some_and(|spin| spin.next(now) == Next::Yield);
        let polls = if yields_first { PAUSES - 1 } else { 0 };
        Wait { spin, polls, kernel_due: now + KERNEL_EVERY }
    }

    /// Whether to poll again, after a pause or a yield. False: the kernel has to be asked, if it
    /// still [spins](Self::spins), or this thread sleeps.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        if self.spin.is_none() {
            return false;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(PAUSES) {
            return self.goes_on();
        }
        std::hint::spin_loop();
        true
    }

    fn goes_on(&mut self) -> bool {
        let Some(spin) = &mut self.spin else { return false };
        let now = clock::now();
        if !SPINS.replace(true)
            && (SPINNING.fetch_add(1, Ordering::Relaxed) >= CPUS.load(Ordering::Relaxed)
                || quota::is_throttled(now))
        {
            // Its spins would take the core from other threads that spin, or from the program's
            // work.
            self.stop();
            return false;
        }
        if now >= self.kernel_due && spin.next(now) != Next::Sleep {
            self.kernel_due = now + KERNEL_EVERY;
            return false;
        }
        match spin.next(now) {
            Next::Poll => true,
            Next::Yield => {
                std::thread::yield_now();
                let back = clock::now();
                learn(|policy| policy.yielded(spin, now, back));
                true
            }
            Next::Sleep => {
                count(if spin.was_crowded() { &COUNTERS.crowded } else { &COUNTERS.vain }, 1);
                learn(|policy| policy.missed(spin, now));
                tally(Duration::ZERO, spin.spent(now));
                self.stop();
                false
            }
        }
    }

    /// It sleeps, or has found something.
    pub(crate) fn stop(&mut self) {
        self.spin = None;
        end_spin();
    }

    /// Whether it polls before it sleeps.
    pub(crate) fn spins(&self) -> bool {
        self.spin.is_some()
    }

    /// Something is here. `by_poll`: a poll of the rings found it; otherwise the kernel reported
    /// it.
    pub(crate) fn found(&mut self, by_poll: bool) {
        let Some(spin) = self.spin.take() else { return };
        count(&COUNTERS.spun, 1);
        // Next to no time has passed before the clock is first read.
        let now = if self.polls >= PAUSES { clock::now() } else { spin.began() };
        let saved = learn(|policy| match by_poll {
            true => policy.found(&spin, now),
            false => policy.found_late(&spin, now, KERNEL_EVERY / 2),
        });
        tally(saved, spin.spent(now));
        self.stop();
    }
}

/// Time saved and time spun, published by the millisecond: words that all threads write are slow.
fn tally(saved: Duration, spun: Duration) {
    let [mut all_saved, mut all_spun] = UNPUBLISHED.get();
    all_saved += saved;
    all_spun += spun;
    if all_saved.max(all_spun) >= Duration::from_millis(1) {
        count(&COUNTERS.saved_time, all_saved.as_nanos() as u64);
        count(&COUNTERS.spun_time, all_spun.as_nanos() as u64);
        [all_saved, all_spun] = [Duration::ZERO; 2];
    }
    UNPUBLISHED.set([all_saved, all_spun]);
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.stop();
    }
}

/// This thread stops spinning. A thread whose handler left a spin by a jump does so before its next
/// spin.
fn end_spin() {
    if SPINS.take() {
        SPINNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A sleep of this thread, which measures the latency of a wake-up.
pub(crate) struct Sleep(u64);

impl Sleep {
    pub(crate) fn begin() -> Sleep {
        Sleep(clock::nanoseconds())
    }

    /// It ended at `at`. `peer_woke_at`: when the peer says that it sent the wake-up, which a
    /// hostile one may set to anything.
    // Not inlined: the accounting needs stack, and that of a handler may be short.
    #[inline(never)]
    pub(crate) fn end(self, at: Instant, peer_woke_at: u64) {
        let at = at.as_nanos() as u64;
        if (self.0..=at).contains(&peer_woke_at) {
            learn(|policy| policy.woke(Duration::from_nanos(at - peer_woke_at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_events_do_not_justify_spins() {
        assert!(Wait::new(None).spins());
        for _ in 0..20 {
            let began = clock::now() - Duration::from_micros(20);
            let spin = POLICY.get().spin(began, Duration::from_micros(100));
            Wait { spin: Some(spin), polls: PAUSES, kernel_due: began + KERNEL_EVERY }.found(false);
        }
        assert!(!Wait::new(None).spins());
    }
}
