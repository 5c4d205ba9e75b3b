//! The time, read when something first asks for it.

use std::cell::Cell;
use std::time::Instant;

/// The time of one step: a wait of a channel that has neither timers nor deadlines reads no clock.
#[derive(Debug, Default)]
pub(crate) struct Now(Cell<Option<Instant>>);

impl Now {
    #[inline]
    pub(crate) fn get(&self) -> Instant {
        match self.0.get() {
            Some(now) => now,
            None => {
                let now = Instant::now();
                self.0.set(Some(now));
                now
            }
        }
    }
}
