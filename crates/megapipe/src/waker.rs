//! Waking a channel from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the channel it came from; may be cloned and sent to any thread. Wakes between
/// two dispatches are one: the flag saves all but the first a system call.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    flag: Flag,
    eventfd: OwnedFd,
}

/// Set by wakers, cleared by the channel before it checks what woke it.
#[derive(Debug)]
struct Flag {
    raised: AtomicBool,
}

impl Flag {
    fn new() -> Flag {
        Flag { raised: AtomicBool::new(false) }
    }

    /// Raises the flag; calls `signal` if it was down.
    fn raise(&self, signal: impl FnOnce()) {
        // WAKE-PAIR: release our writes to the channel that clears the flag.
        if !self.raised.swap(true, Ordering::AcqRel) {
            signal();
        }
    }

    /// Calls `clear`, then lowers the flag, in this order, so that a wake in between is
    /// seen by the event that is about to be delivered.
    fn lower(&self, clear: impl FnOnce()) -> bool {
        clear();
        // WAKE-PAIR: acquire what was written before the wake.
        self.raised.swap(false, Ordering::AcqRel)
    }
}

impl Waker {
    pub(crate) fn new() -> std::io::Result<Waker> {
        let eventfd = sys::eventfd::create()?;
        Ok(Waker { shared: Arc::new(Shared { flag: Flag::new(), eventfd }) })
    }

    /// Makes the channel's dispatch return an [`crate::Event::Wake`], now or at its next
    /// call. What was written before `wake` is visible to the code that handles that
    /// event.
    pub fn wake(&self) {
        self.shared.flag.raise(|| sys::eventfd::raise(self.shared.eventfd.as_fd()));
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }

    /// Empties the eventfd and lowers the flag; true if a wake came.
    pub(crate) fn lower(&self) -> bool {
        self.shared.flag.lower(|| sys::eventfd::drain(self.shared.eventfd.as_fd()))
    }
}

/// Run with `RUSTFLAGS="--cfg loom" cargo test -p megapipe --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// An eventfd, with a thread that waits for it.
    struct Event {
        signalled: Mutex<bool>,
        changed: Condvar,
    }

    #[test]
    fn every_wake_is_seen_after_what_it_announces() {
        let mut model = loom::model::Builder::new();
        // All interleavings take a minute; three switches find every known failure.
        model.preemption_bound = Some(3);
        model.check(|| {
            let flag = loom::sync::Arc::new(Flag::new());
            let event = loom::sync::Arc::new(Event { signalled: Mutex::new(false), changed: Condvar::new() });
            let posted = loom::sync::Arc::new(AtomicUsize::new(0));
            // The second wake of one thread finds a flag that was left raised without an
            // event.
            let wakers: Vec<_> = [1, 2]
                .into_iter()
                .map(|wakes| {
                    let (flag, event, posted) = (flag.clone(), event.clone(), posted.clone());
                    thread::spawn(move || {
                        for _ in 0..wakes {
                            posted.fetch_add(1, Ordering::Relaxed);
                            flag.raise(|| {
                                *event.signalled.lock().unwrap() = true;
                                event.changed.notify_one();
                            });
                        }
                    })
                })
                .collect();
            // A lost wake lets this wait for ever, which loom reports.
            let mut seen = 0;
            while seen < 3 {
                let mut signalled = event.signalled.lock().unwrap();
                while !*signalled {
                    signalled = event.changed.wait(signalled).unwrap();
                }
                drop(signalled);
                if flag.lower(|| *event.signalled.lock().unwrap() = false) {
                    seen = posted.load(Ordering::Relaxed);
                }
            }
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }
}
