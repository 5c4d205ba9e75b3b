//! A fork while other threads talk to the monitor.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::{INSIDE, PROMOTER, Promoter};
use crate::signals::Quiet;

/// How long a thread that talks to the monitor does so at most, but where it waits for a core.
const HELD_FOR: Duration = Duration::from_millis(50);

thread_local! {
    /// What [`hold_still`] holds.
    static STILL: Cell<Option<Still>> = const { Cell::new(None) };
}

/// Without a destructor that the thread's end would have to know of.
type Still = ManuallyDrop<(MutexGuard<'static, Option<Promoter>>, Quiet)>;

/// Before a fork: keeps other threads from talking to the monitor, of which the child would have half, until
/// [`move_on`]. One that does is waited for, if that is not for long.
pub(crate) fn hold_still() {
    let began = Instant::now();
    // A signal handler may fork in the middle of it.
    while !INSIDE.get() && began.elapsed() < HELD_FOR {
        let quiet = Quiet::begin();
        if let Ok(promoter) = PROMOTER.try_lock() {
            return STILL.set(Some(ManuallyDrop::new((promoter, quiet))));
        }
        drop(quiet);
        std::thread::yield_now();
    }
}

/// After the fork, in both processes.
pub(crate) fn move_on() {
    drop(STILL.take().map(ManuallyDrop::into_inner));
}
