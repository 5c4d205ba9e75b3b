//! A fork or a dup2(2) while other threads talk to the monitor.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;
use std::time::Duration;

use super::{INSIDE, PROMOTER, Promoter};
use crate::clock;
use crate::real;
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

/// Runs with the promoter, for a thread that cannot do without it: waits for it as [`hold_still`] does. `None`: in vain.
pub(super) fn held<T>(run: impl FnOnce(&mut Option<Promoter>) -> T) -> Option<T> {
    // The call may be that of a handler of this thread's fork (pthread_atfork(3)).
    let forks = STILL.take();
    let is_kept = forks.is_some();
    let mut still = forks.or_else(wait)?;
    let result = run(&mut still.0);
    real::kept_errno(|| match is_kept {
        true => STILL.set(Some(still)),
        false => drop(ManuallyDrop::into_inner(still)),
    });
    Some(result)
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
