//! Waking a channel from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the channel it came from; may be cloned and sent to any thread. Wakes between
/// two dispatches are one: the flag keeps all but the first from a system call.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    flag: Flag,
    eventfd: OwnedFd,
}

/// Set by wakers, cleared by the channel before it looks at what woke it.
#[derive(Debug)]
struct Flag {
    raised: AtomicBool,
}

impl Flag {
    fn new() -> Flag {
        Flag { raised: AtomicBool::new(false) }
    }

    /// Raises the flag; calls `ring` if it was down.
    fn raise(&self, ring: impl FnOnce()) {
        // WAKE-PAIR: release our writes to the channel that clears the flag.
        if !self.raised.swap(true, Ordering::AcqRel) {
            ring();
        }
    }

    /// Calls `silence`, then lowers the flag, in this order, so that a wake in between is
    /// seen by the event that is about to be handed out.
    fn lower(&self, silence: impl FnOnce()) -> bool {
        silence();
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
    /// call. What was written before `wake` is visible to whoever handles that event.
    pub fn wake(&self) {
        self.shared.flag.raise(|| sys::eventfd::raise(self.shared.eventfd.as_fd()));
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }

    /// The channel's side: empties the eventfd and the flag; whether a wake came.
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

    /// An eventfd with somebody asleep on it.
    struct Bell {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    #[test]
    fn every_wake_is_seen_after_what_it_announces() {
        let mut model = loom::model::Builder::new();
        // All interleavings take a minute; three switches find what there is to find.
        model.preemption_bound = Some(3);
        model.check(|| {
            let flag = loom::sync::Arc::new(Flag::new());
            let bell = loom::sync::Arc::new(Bell { rung: Mutex::new(false), changed: Condvar::new() });
            let posted = loom::sync::Arc::new(AtomicUsize::new(0));
            // The second wake of one shows whether the flag was left up in silence.
            let wakers: Vec<_> = [1, 2]
                .into_iter()
                .map(|wakes| {
                    let (flag, bell, posted) = (flag.clone(), bell.clone(), posted.clone());
                    thread::spawn(move || {
                        for _ in 0..wakes {
                            posted.fetch_add(1, Ordering::Relaxed);
                            flag.raise(|| {
                                *bell.rung.lock().unwrap() = true;
                                bell.changed.notify_one();
                            });
                        }
                    })
                })
                .collect();
            // A lost wake leaves this asleep for ever, which loom reports.
            let mut seen = 0;
            while seen < 3 {
                let mut rung = bell.rung.lock().unwrap();
                while !*rung {
                    rung = bell.changed.wait(rung).unwrap();
                }
                drop(rung);
                if flag.lower(|| *bell.rung.lock().unwrap() = false) {
                    seen = posted.load(Ordering::Relaxed);
                }
            }
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }
}
