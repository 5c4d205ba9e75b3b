//! Timers of a channel: a heap in user space, so that a timer costs no system call; the
//! nearest deadline bounds the channel's waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use crate::completion::{Completion, Event};
use crate::core::{Core, Op, OpKind};
use crate::id::{Handle, OpId};

/// A time that is as good as never, and that the clock can reach.
pub(crate) const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

/// When a timer fires. A move to a later time only stores it: the entry of the heap, which comes
/// up first, is then queued again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) at: Instant,
    /// The time of the entry that counts, which is not later; those of other times are stale.
    pub(crate) entry_at: Instant,
}

impl Timers {
    pub(crate) fn insert(&mut self, at: Instant, op: OpId) {
        self.heap.push(Reverse((at, op.to_bits())));
    }

    /// No timer is left: what the heap still has is stale.
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }

    /// The next deadline. It may be that of a cancelled timer, or of one that was moved: a wait
    /// ends early then, which costs a turn and nothing else.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// An entry whose time has come, and its time. Its timer may have been cancelled or moved
    /// meanwhile.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<(Instant, OpId)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, bits))| (at, OpId::from_bits(bits)))
    }

    /// Forgets entries of cancelled and moved timers once they are the larger part, so that the
    /// heap stays within twice the number of live ones.
    pub(crate) fn shrink(&mut self, live: usize, is_live: impl Fn(Instant, OpId) -> bool) {
        if self.heap.len() > 64 && self.heap.len() > live * 2 {
            self.heap.retain(|Reverse((at, bits))| is_live(*at, OpId::from_bits(*bits)));
        }
    }
}

impl Core {
    /// A timer whose time has come.
    pub(crate) fn expire_timer(&mut self, now: Instant) -> Option<Completion> {
        while let Some((entry_at, op)) = self.timers.pop_expired(now) {
            let Some(Op { kind: OpKind::Timer { due, .. }, .. }) = self.op_mut(op) else { continue };
            if due.entry_at != entry_at {
                continue;
            }
            if due.at <= now {
                return self.end_timer(op, Ok(()));
            }
            // It was moved to a later time.
            due.entry_at = due.at;
            let at = due.at;
            self.timers.insert(at, op);
        }
        None
    }

    /// Gives a live timer another time.
    pub(crate) fn move_timer(&mut self, op: OpId, at: Instant) {
        let Some(Op { kind: OpKind::Timer { due, .. }, .. }) = self.op_mut(op) else { return };
        due.at = at;
        if at < due.entry_at {
            due.entry_at = at;
            self.timers.insert(at, op);
            self.forget_stale_timers();
        }
    }

    pub(crate) fn forget_stale_timers(&mut self) {
        let ops = &self.ops;
        self.timers.shrink(self.timers_live, |entry_at, op| {
            matches!(
                ops.get(op.index, op.generation),
                Some(Op { kind: OpKind::Timer { due, .. }, .. }) if due.entry_at == entry_at
            )
        });
    }

    pub(crate) fn end_timer(&mut self, op: OpId, result: io::Result<()>) -> Option<Completion> {
        let Some(Op { kind: OpKind::Timer { cookie, .. }, .. }) = self.op(op) else {
            return None;
        };
        let cookie = *cookie;
        self.ops.remove(op.index);
        self.timers_live -= 1;
        if self.timers_live == 0 {
            self.timers.clear();
        }
        self.stats.completions += 1;
        Some(Completion { handle: Handle::NONE, cookie, op, event: Event::Timer(result) })
    }
}

#[cfg(test)]
mod tests {
    use crate::channel::Channel;
    use crate::config::{Config, EngineKind};

    use super::*;

    #[test]
    fn the_heap_stays_within_twice_the_live_timers() {
        let config = Config { engine: Some(EngineKind::Epoll), ..Config::default() };
        let mut channel = Channel::new(config).unwrap();
        let timers: Vec<_> =
            (0..100).map(|cookie| channel.timer(Duration::from_secs(3600), cookie).unwrap()).collect();
        // Each time earlier, then later, so that entries become stale and true again.
        for round in (1..1000).rev() {
            for &timer in &timers {
                channel.move_timer(timer, Duration::from_secs(round)).unwrap();
                channel.move_timer(timer, Duration::from_secs(2 * round)).unwrap();
            }
            assert!(channel.core.timers.heap.len() <= 2 * timers.len());
        }
        assert!(channel.dispatch(Some(Duration::ZERO)).unwrap().is_none());
    }
}
