//! A thread is woken only while it sleeps or is about to, and once for each sleep.

use super::sync::{Arc, AtomicU32, Ordering, fence};

/// The number of the sleep that the thread is in, or about to begin; 0 while it is awake. Only the thread
/// stores it.
type Number = Arc<AtomicU32>;

/// A thread that sleeps, and the one that wakes it.
pub(crate) fn pair() -> (Sleeper, Waker) {
    let number = Arc::new(AtomicU32::new(0));
    (Sleeper { number: number.clone(), last: 0 }, Waker { number, woken: 0 })
}

pub(crate) struct Sleeper {
    number: Number,
    last: u32,
}

impl Sleeper {
    /// The thread is about to sleep. It has to check its ring once more before it does.
    pub(crate) fn announce(&mut self) {
        self.last = self.last.wrapping_add(1).max(1);
        self.number.store(self.last, Ordering::Relaxed);
        // SLEEP-PAIR: the number is stored before the last check of the ring; `must_wake` has the other.
        fence(Ordering::SeqCst);
    }

    /// The thread is awake, and checks its ring before it sleeps again.
    pub(crate) fn end(&self) {
        self.number.store(0, Ordering::Relaxed);
    }
}

pub(crate) struct Waker {
    number: Number,
    /// The last sleep that was ended.
    woken: u32,
}

impl Waker {
    /// Whether the caller, who has published something, has to wake the thread.
    pub(crate) fn must_wake(&mut self) -> bool {
        // SLEEP-PAIR: messages are published before the number is loaded.
        fence(Ordering::SeqCst);
        let number = self.number.load(Ordering::Relaxed);
        number != 0 && std::mem::replace(&mut self.woken, number) != number
    }
}
