//! A fork while other threads talk to the monitor.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::{INSIDE, PROMOTER, Promoter};
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
    let began = Instant::now();
    // A signal handler may fork in the middle of it.
    while !INSIDE.get() && began.elapsed() < HELD_FOR {
        let quiet = Quiet::begin();
        if let Ok(promoter) = PROMOTER.try_lock() {
            return STILL.set(Some(ManuallyDrop::new((promoter, quiet))));
        }
        drop(quiet);
        std::thread::sleep(PAUSE);
    }
}

/// After the fork, in both processes.
pub(crate) fn move_on() {
    drop(STILL.take().map(ManuallyDrop::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promoter::with;

    #[test]
    fn a_thread_that_waits_for_a_core_is_waited_for() {
        let (begins, has_begun) = std::sync::mpsc::channel();
        let slow = std::thread::spawn(move || {
            let hold = || {
                with(|_| {
                    begins.send(()).expect("the test waits");
                    std::thread::sleep(Duration::from_millis(300));
                })
            };
            while hold().is_none() {}
        });
        has_begun.recv().expect("the thread begins");
        hold_still();
        assert!(STILL.take().map(ManuallyDrop::into_inner).is_some());
        slow.join().expect("it only sleeps");
    }
}
