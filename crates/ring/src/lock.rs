//! Direction locks: one holder at a time among the threads and processes of one endpoint.

use crate::memory::Region;
use crate::sync::{AtomicU32, Ordering};

/// The half of an endpoint that a lock guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The sender half.
    Send,
    /// The receiver half.
    Receive,
}

/// How a lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Its last holder released it.
    Free,
    /// Its last holder died while holding it. Whatever that holder had not published is
    /// void.
    TakenOver,
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The caller's own thread holds it: a signal handler interrupted it, or the id is
    /// that of a dead thread. The caller can distinguish these.
    #[error("the calling thread already holds this direction of the connection")]
    Own,
    /// The caller gave up.
    #[error("another thread holds this direction of the connection")]
    Busy,
}

/// What a waiter does between two checks of a lock.
pub trait Wait {
    /// Whether the thread with this id still lives; called seldom, as it takes a system
    /// call.
    fn is_alive(&mut self, thread: u32) -> bool;
    /// Pauses, yields or sleeps; `attempt` counts from 0. False: give up.
    fn pause(&mut self, attempt: u32) -> bool;
}

/// A waiter checks whether the holder died each time that it has paused this often.
const PAUSES_PER_CHECK: u32 = 64;

/// A direction lock of the own region.
#[derive(Clone, Debug)]
pub struct Lock {
    region: Region,
    direction: Direction,
}

impl Lock {
    /// The lock of one half.
    pub fn new(region: Region, direction: Direction) -> Lock {
        Lock { region, direction }
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        match self.direction {
            Direction::Send => &self.region.header().send_lock,
            Direction::Receive => &self.region.header().receive_lock,
        }
    }

    /// Acquires it for `thread` (gettid(2), never 0): one compare-exchange if it is free.
    /// The new holder calls `resume` of its half before anything else.
    ///
    /// # Errors
    /// [`LockError::Own`] if `thread` holds it; [`LockError::Busy`] if `wait` gave up.
    #[inline]
    pub fn acquire(&self, thread: u32, wait: &mut impl Wait) -> Result<Acquired, LockError> {
        // LOCK-PAIR: acquire the last holder's stores.
        match self.word().compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Acquired::Free),
            Err(holder) => self.contend(holder, thread, wait),
        }
    }

    #[cold]
    fn contend(&self, mut holder: u32, thread: u32, wait: &mut impl Wait) -> Result<Acquired, LockError> {
        let mut attempt: u32 = 0;
        loop {
            if holder == thread {
                return Err(LockError::Own);
            }
            let dead = holder != 0 && attempt.is_multiple_of(PAUSES_PER_CHECK) && !wait.is_alive(holder);
            if holder == 0 || dead {
                // LOCK-PAIR: a dead holder has one successor: the word must still hold
                // its id.
                match self.word().compare_exchange(holder, thread, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Ok(if dead { Acquired::TakenOver } else { Acquired::Free }),
                    Err(other) => holder = other,
                }
            } else {
                if !wait.pause(attempt) {
                    return Err(LockError::Busy);
                }
                attempt = attempt.wrapping_add(1);
                holder = self.word().load(Ordering::Relaxed);
            }
        }
    }

    /// Records that `process` uses this endpoint from now on; called by a holder. True:
    /// another process did before, and the state that it stored has to be
    /// [resumed](crate::Receiver::resume).
    #[inline]
    pub fn passes_to(&self, process: u32) -> bool {
        // Ordered by the lock, as all stores of its holders.
        let word = &self.region.header().process;
        let passes = word.load(Ordering::Relaxed) != process;
        if passes {
            word.store(process, Ordering::Relaxed);
        }
        passes
    }

    /// A process that holds this endpoint is about to fork.
    pub fn adds_holder(&self) {
        self.region.header().forks.fetch_add(1, Ordering::Relaxed);
    }

    /// A process closes this endpoint. True: it was the last one.
    pub fn drops_holder(&self) -> bool {
        let forks = &self.region.header().forks;
        let updated = forks.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |forks| forks.checked_sub(1));
        updated.is_err()
    }

    /// Whether other processes than the caller's hold it.
    pub fn has_holders(&self) -> bool {
        self.region.header().forks.load(Ordering::Acquire) > 0
    }

    /// Records that more than one process uses this endpoint; never undone.
    pub fn mark_several(&self) {
        self.region.header().several.store(1, Ordering::Relaxed);
    }

    /// Whether more than one process has used this endpoint.
    #[inline]
    pub fn has_several(&self) -> bool {
        self.region.header().several.load(Ordering::Relaxed) != 0
    }

    /// Releases it, if `thread` holds it.
    #[inline]
    pub fn release(&self, thread: u32) {
        if self.word().load(Ordering::Relaxed) == thread {
            // LOCK-PAIR: release this holder's stores.
            self.word().store(0, Ordering::Release);
        }
    }
}
