//! A fork or a dup2(2) while other threads talk to the monitor.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;
use std::time::Duration;

use super::{INSIDE, PROMOTER, Promoter};
use crate::clock;
use crate::signals::Quiet;

/// How long a thread that talks to the monitor is waited for. It takes no time itself, but may wait for a core; one that
/// a debugger has stopped is given up, and the child promotes nothing.
const HELD_FOR: Duration = Duration::from_secs(10);
/// Between two attempts: real-time threads that never sleep keep such a thread from its core.
const PAUSE: Duration = Duration::from_micros(50);

thread_local! {
    /// What [`hold_still`] holds.
    static STILL: Cell<Option<Still>> = const { Cell::new(None) };
}

/// Without a destructor that the thread's end would have to know of.
type Still = ManuallyDrop<(MutexGuard<'static, Option<Promoter>>, Quiet)>;

/// Before a fork: keeps other threads from talking to the monitor, of which the child would have half, until
/// [`move_on`]. One that does is waited for: the child would never get the promoter that it has.
pub(crate) fn hold_still() {
    // A signal handler may fork in the middle of it.
    if !INSIDE.get() {
        STILL.set(wait());
    }
}

fn wait() -> Option<Still> {
    let began = clock::now();
    loop {
        let quiet = Quiet::begin();
        if let Ok(promoter) = PROMOTER.try_lock() {
            return Some(ManuallyDrop::new((promoter, quiet)));
        }
        drop(quiet);
        if clock::elapsed(began) >= HELD_FOR {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The promoter, for a thread that cannot do without it, as long as this lives.
pub(super) struct Held {
    still: Option<Still>,
    /// This thread forks: the call is that of a handler (pthread_atfork(3)).
    forks: bool,
}

/// Waits for it as [`hold_still`] does.
pub(super) fn hold() -> Option<Held> {
    let forks = STILL.take();
    Some(Held { forks: forks.is_some(), still: Some(forks.or_else(wait)?) })
}

impl Held {
    pub(super) fn disconnect(&mut self) {
        if let Some(promoter) = self.still.as_mut().and_then(|still| still.0.as_mut()) {
            promoter.disconnect();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let still = self.still.take();
        if self.forks {
            STILL.set(still);
        } else {
            drop(still.map(ManuallyDrop::into_inner));
        }
    }
}

/// After the fork, in both processes.
pub(crate) fn move_on() {
    drop(STILL.take().map(ManuallyDrop::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promoter::alone;

    #[test]
    fn a_thread_that_waits_for_a_core_is_waited_for() {
        let (begins, has_begun) = std::sync::mpsc::channel();
        let slow = std::thread::spawn(move || {
            let hold = || {
                alone(|_| {
                    begins.send(()).expect("the test waits");
                    std::thread::sleep(Duration::from_millis(300));
                })
                .is_some()
            };
            while !hold() {}
        });
        has_begun.recv().expect("the thread begins");
        hold_still();
        assert!(STILL.take().map(ManuallyDrop::into_inner).is_some());
        slow.join().expect("it only sleeps");
    }
}
