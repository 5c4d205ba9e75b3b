//! A lock in one word: held for moments, across calls that the kernel answers at once, and during a
//! demotion until the peer has answered. A fork holds many. A waiting thread soon sleeps, by
//! futex(2) (the second mutex of Drepper, "Futexes are tricky"): threads that yield until it is
//! free take the core from the holder, and one under SCHED_FIFO never lets it run.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Timespec};

use crate::real;
use crate::signals::Quiet;
use crate::threads;

/// Zeroed memory is a free lock.
#[derive(Debug, Default)]
pub(crate) struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread sleeps on it.
const AWAITED: u32 = 2;

/// Spins before a thread yields its core, which the holder may need.
const SPINS: u32 = 64;
/// Yields before it sleeps. With one, the slowest hundredth of the requests to a pool on one core
/// took five times plain TCP's time; with four, a pool on two CPUs gained half as much.
const YIELDS: u32 = 3;

/// The longest delay of a handler whose signal came just before the sleep; a later signal ends the
/// sleep.
const HANDLERS_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

impl Lock {
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Held<'_>> {
        // A handler that runs while it is held might need it, or leave by a jump.
        let quiet = Quiet::begin();
        // HELD-PAIR: acquire what the last holder stored.
        let free = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Made only if it is held: dropping it frees the lock.
        free.then(|| Held(self, quiet))
    }

    #[inline]
    pub(crate) fn hold(&self) -> Held<'_> {
        self.try_hold().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Held<'_> {
        for _ in 0..YIELDS {
            for _ in 0..SPINS {
                if self.0.load(Ordering::Relaxed) == FREE
                    && let Some(held) = self.try_hold()
                {
                    return held;
                }
                spin_loop();
            }
            std::thread::yield_now();
        }
        // No handler runs between a wake-up and the swap: if it left by a jump, the other sleeping
        // threads would not be woken.
        let mut quiet = Quiet::begin();
        // HELD-PAIR: acquire what the last holder stored.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            let slept = real::kept_errno(|| {
                futex::wait(&self.0, futex::Flags::PRIVATE, AWAITED, Some(&HANDLERS_WAIT))
            });
            if slept.is_err() {
                // It was not woken, so handlers may run here.
                drop(quiet);
                quiet = Quiet::begin();
            }
        }
        Held(self, quiet)
    }

    /// Frees it regardless of its holder: in the child of a fork, where no other thread lives.
    pub(crate) fn reset(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// Frees the lock when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock, Quiet);

impl Held<'_> {
    #[cold]
    fn wakes(&self) {
        real::kept_errno(|| {
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        });
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // HELD-PAIR: release what this holder stored.
        if threads::is_alone() {
            // No thread waits, and a store is cheaper.
            self.0.0.store(FREE, Ordering::Release);
        } else if self.0.0.swap(FREE, Ordering::Release) == AWAITED {
            self.wakes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failed_try_leaves_the_lock_held() {
        let lock = Lock::new();
        let held = lock.hold();
        assert!(lock.try_hold().is_none() && lock.try_hold().is_none());
        drop(held);
        assert!(lock.try_hold().is_some());
    }

    /// A waiting thread takes no CPU time, however long the lock is held, and gets it once it is
    /// free.
    #[test]
    #[allow(unsafe_code)] // a clock of the C library's
    fn waiters_sleep() {
        let lock = Lock::new();
        let held = lock.hold();
        let spent = std::thread::scope(|scope| {
            let waits = || {
                drop(lock.hold());
                let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: room for a time.
                unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut spent) };
                Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
            };
            let threads = [(); 3].map(|()| scope.spawn(waits));
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(spent.iter().all(|spent| *spent < Duration::from_millis(50)), "{spent:?}");
    }

    #[test]
    #[allow(unsafe_code)] // what the lock guards
    fn one_thread_at_a_time() {
        struct Shared(Lock, UnsafeCell<u64>);
        // SAFETY: the number is reached only with the lock held.
        unsafe impl Sync for Shared {}
        impl Shared {
            fn add(&self) {
                let _held = self.0.hold();
                // SAFETY: the lock is held.
                unsafe { *self.1.get() += 1 };
            }
        }
        let shared = Shared(Lock::new(), UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| shared.add()));
            }
        });
        assert_eq!(shared.1.into_inner(), 200_000);
    }
}
