//! What the steering of a partitioned listener learns from its channel: whether that waits, and how
//! many connections it has accepted.

use std::time::Instant;

use steering::Owner;

use crate::accept::AcceptAs;
use crate::channel::Channel;
use crate::core::{Core, Op, OpKind};
use crate::error::DispatchError;

impl Core {
    /// What a listener shares with the program that steers to it.
    pub(crate) fn owner_of(&self, listener: u32) -> Option<Owner<'_>> {
        self.handles.at(listener)?.member.as_ref()?.owner()
    }

    /// Whether an accept of the listener would take a connection now.
    fn can_accept(&self, listener: u32) -> bool {
        let first = self.handles.at(listener).and_then(|entry| self.ops.at(entry.reads.head));
        let Some(Op { cancelled: false, kind: OpKind::Accept(state), .. }) = first else { return false };
        !state.is_paused()
            && self.handles.len() < self.config.handles_max
            && !(state.kind == AcceptAs::LwSocket && self.lwsockets_left(false) == 0)
    }
}

impl Channel {
    /// As [`Self::wait`], and the channel counts as awake meanwhile: connections come to its
    /// partitioned listeners.
    pub(crate) fn wait_for_connections(
        &mut self,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Result<Instant, DispatchError> {
        let core = &self.core;
        self.partitioned.retain(|&listener| core.handles.get(listener.index, listener.generation).is_some());
        self.for_each_owner(|owner| {
            // Everything that was fetched has been handed out.
            owner.found_queue_empty();
            owner.waits();
        });
        let ended = self.wait(deadline, now);
        let since = sys::clock::monotonic();
        self.for_each_owner(|owner| owner.is_away_since(since));
        ended
    }

    /// Of those listeners that can accept; the others say that they cannot.
    fn for_each_owner(&self, each: impl Fn(Owner<'_>)) {
        for listener in &self.partitioned {
            match self.core.owner_of(listener.index) {
                Some(owner) if self.core.can_accept(listener.index) => each(owner),
                Some(owner) => owner.cannot_accept(),
                None => {}
            }
        }
    }
}
