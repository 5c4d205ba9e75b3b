//! Publishes to the steering of a partitioned listener whether its channel waits, and how
//! many connections it has accepted.

use crate::accept::AcceptAs;
use crate::core::{Core, Op, OpKind};
use crate::partition::Member;

/// This channel's membership in a partitioned listener.
pub(crate) struct Partitioned {
    /// The index of its handle.
    pub(crate) listener: u32,
    pub(crate) member: Member,
}

impl Core {
    pub(crate) fn member_mut(&mut self, listener: u32) -> Option<&mut Member> {
        let ours = |partitioned: &&mut Partitioned| partitioned.listener == listener;
        self.partitioned.iter_mut().find(ours).map(|partitioned| &mut partitioned.member)
    }

    /// A listener is closed or unregistered: no connection is steered to it any more.
    pub(crate) fn leave_group(&mut self, listener: u32) {
        self.partitioned.retain(|partitioned| partitioned.listener != listener);
    }

    /// The listener's accept returned a connection that was steered to it.
    #[inline]
    pub(crate) fn count_accepted(&self, listener: u32) {
        for partitioned in &self.partitioned {
            if partitioned.listener == listener
                && let Some(owner) = partitioned.member.owner()
            {
                owner.accepted();
            }
        }
    }

    /// Whether an accept of the listener would return a connection now.
    fn can_accept(&self, listener: u32) -> bool {
        let first = self.handles.at(listener).and_then(|entry| self.ops.at(entry.reads.head));
        let Some(Op { cancelled: false, kind: OpKind::Accept(state), .. }) = first else { return false };
        !state.is_paused()
            && self.handles.len() < self.config.handles_max
            && !(state.kind == AcceptAs::LwSocket && self.lwsockets_left(false) == 0)
    }

    /// Before a wait, with every fetched completion delivered: connections may come to
    /// the channel's partitioned listeners.
    #[inline]
    pub(crate) fn mark_waiting(&self) {
        for Partitioned { listener, member } in &self.partitioned {
            match member.owner() {
                Some(owner) if self.can_accept(*listener) => {
                    owner.found_queue_empty();
                    owner.waits();
                }
                Some(owner) => owner.cannot_accept(),
                None => {}
            }
        }
    }

    /// After a wait.
    #[inline]
    pub(crate) fn mark_away(&self) {
        if !self.partitioned.is_empty() {
            let since = sys::clock::monotonic();
            let owners = self.partitioned.iter().filter_map(|partitioned| partitioned.member.owner());
            owners.for_each(|owner| owner.waited_until(since));
        }
    }
}
