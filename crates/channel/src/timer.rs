//! Timers of a channel: a heap in user space, so that a timer costs no system call; the
//! nearest deadline bounds the channel's waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::id::OpId;

/// A time that is as good as never, and that the clock can reach.
pub(crate) const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Timers {
    pub(crate) fn insert(&mut self, at: Instant, op: OpId) {
        self.heap.push(Reverse((at, op.to_bits())));
    }

    /// The next deadline. It may be that of a cancelled timer: a wait ends early then,
    /// which costs a turn and nothing else.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// A timer whose time has come. It may have been cancelled meanwhile.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<OpId> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, bits))| OpId::from_bits(bits))
    }

    /// Forgets cancelled timers once they are the larger part, so that the heap stays
    /// within twice the number of live ones.
    pub(crate) fn shrink(&mut self, live: usize, is_live: impl Fn(OpId) -> bool) {
        if self.heap.len() > 64 && self.heap.len() > live * 2 {
            self.heap.retain(|Reverse((_, bits))| is_live(OpId::from_bits(*bits)));
        }
    }
}
