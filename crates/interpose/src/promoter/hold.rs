//! A fork or a dup2(2) while other threads use the promoter.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;
use std::time::Duration;

use super::{INSIDE, PROMOTER, Promoter};
use crate::clock;
use crate::real;
use crate::signals::Quiet;

/// How long to wait for a thread that holds the promoter. It works only briefly, but may wait for a
/// core. If a debugger has stopped it the wait ends, and the child promotes nothing.
const HELD_FOR: Duration = Duration::from_secs(10);
/// Between two attempts. A sleep, since real-time threads that spin could keep that thread from its
/// core.
const PAUSE: Duration = Duration::from_micros(50);

thread_local! {
    /// The promoter, held by [`hold`].
    static HELD: Cell<Option<Hold>> = const { Cell::new(None) };
}

/// Without a destructor, which would have to be registered for the end of the thread.
type Hold = ManuallyDrop<(MutexGuard<'static, Option<Promoter>>, Quiet)>;

/// Before a fork: keeps other threads from the promoter until [`release`], since the child would
/// get it half updated. Waits for a thread that holds it, since it would stay locked in the child.
pub(crate) fn hold() {
    // A signal handler may fork while the promoter runs.
    if !INSIDE.get() {
        HELD.set(wait());
    }
}

fn wait() -> Option<Hold> {
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

/// Runs with the promoter, for a thread that needs it: waits as [`hold`] does. `None`: the
/// wait timed out.
pub(super) fn with_hold<T>(run: impl FnOnce(&mut Option<Promoter>) -> T) -> Option<T> {
    // The call may come from a fork handler of this thread (pthread_atfork(3)).
    let forks = HELD.take();
    let is_kept = forks.is_some();
    let mut held = forks.or_else(wait)?;
    let result = run(&mut held.0);
    real::kept_errno(|| match is_kept {
        true => HELD.set(Some(held)),
        false => drop(ManuallyDrop::into_inner(held)),
    });
    Some(result)
}

/// Whether a handler of pthread_atfork(3) runs: its thread also has the locks of all promoted
/// sockets.
pub(super) fn forks() -> bool {
    let held = HELD.take();
    let forks = held.is_some();
    HELD.set(held);
    forks
}

/// After the fork, in both processes.
pub(crate) fn release() {
    drop(HELD.take().map(ManuallyDrop::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promoter::alone;

    #[test]
    fn a_holder_without_a_core_is_awaited() {
        let (begins, has_begun) = std::sync::mpsc::channel();
        let slow = std::thread::spawn(move || {
            let try_hold = || {
                alone(|_| {
                    begins.send(()).expect("the test waits");
                    std::thread::sleep(Duration::from_millis(300));
                })
                .is_some()
            };
            while !try_hold() {}
        });
        has_begun.recv().expect("the thread begins");
        hold();
        assert!(HELD.take().map(ManuallyDrop::into_inner).is_some());
        slow.join().expect("it only sleeps");
    }
}
