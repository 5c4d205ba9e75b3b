//! Handing accepted connections from a busy channel to an idle one of the same partitioned
//! listener. MegaPipe left it as future work (OSDI 2012, section 6).
//!
//! A connection stays with the member it was handed to, until an accept there can take it;
//! a member that leaves passes it on.

use crate::accept::{AcceptAs, AcceptCount, Accepted};
use crate::channel::Channel;
use crate::completion::{Completion, Event};
use crate::core::{Core, Op, OpKind};
use crate::error::{AcceptError, ControlError, DispatchError};
use crate::id::{Handle, OpId};
use crate::source::Source;

impl Core {
    /// Remembers an accept without end of a partitioned listener, for connections that are
    /// handed over.
    pub(crate) fn note_accept(&mut self, listener: u32, op: OpId) {
        let Some(mut member) = self.handles.at_mut(listener).and_then(|entry| entry.member.take()) else {
            return;
        };
        member.accepts.retain(|&op| self.accept_kind(op).is_some());
        member.accepts.push(op);
        if let Some(entry) = self.handles.at_mut(listener) {
            entry.member = Some(member);
        }
    }

    /// What such an accept makes of connections; `None` once it ends.
    fn accept_kind(&self, op: OpId) -> Option<AcceptAs> {
        match self.op(op) {
            Some(Op { cancelled: false, kind: OpKind::Accept(state), .. })
                if state.count == AcceptCount::Unlimited =>
            {
                Some(state.kind)
            }
            _ => None,
        }
    }

    /// The listener's accept that can take a connection now.
    fn accept_with_room(&self, listener: Handle) -> Option<(OpId, AcceptAs)> {
        let member = self.handles.get(listener.index, listener.generation)?.member.as_ref()?;
        let full = self.lwsockets_full();
        member.accepts.iter().find_map(|&op| {
            self.accept_kind(op).filter(|kind| !full || *kind == AcceptAs::Fd).map(|kind| (op, kind))
        })
    }

    fn room_for_handed_over(&self, listener: Handle) -> u32 {
        let handles = self.config.handles_max.saturating_sub(self.handles.len());
        match self.accept_with_room(listener) {
            Some((_, AcceptAs::Fd)) => handles,
            Some((_, AcceptAs::LwSocket)) => {
                handles.min(self.config.lwsockets_max.saturating_sub(self.lwsockets.live.get()))
            }
            None => 0,
        }
    }
}

impl Channel {
    /// Tells the other channels of our partitioned listeners whether we could take work.
    pub(crate) fn publish_idle(&mut self, idle: bool) {
        if !self.core.config.balance {
            return;
        }
        let core = &self.core;
        self.partitioned.retain(|&listener| match core.handles.get(listener.index, listener.generation) {
            Some(entry) => {
                if let Some(member) = &entry.member {
                    let room = if idle { core.room_for_handed_over(listener) } else { 0 };
                    member.publish(room, core.handles.len());
                }
                true
            }
            None => false,
        });
    }

    /// Hands a fresh connection to an idle channel of the same listener if this one has
    /// other work waiting; gives back what is not handed over.
    pub(crate) fn balance(&mut self, completion: Completion) -> Option<Completion> {
        let backlog = self.core.done.len();
        let load = self.core.handles.len();
        let Event::Accept { result: Ok(Accepted { socket, .. }), .. } = &completion.event else {
            return Some(completion);
        };
        if backlog == 0 {
            return Some(completion);
        }
        let listener = self.core.handles.get(completion.handle.index, completion.handle.generation);
        let Some(peer) =
            listener.and_then(|entry| entry.member.as_ref()).and_then(|member| member.idle_peer(load))
        else {
            return Some(completion);
        };
        let copy = match socket {
            Source::Fd(fd) => fd.try_clone().map_err(ControlError::Io),
            Source::LwSocket(socket) => self.descriptor_of(socket),
        };
        // Without a descriptor to spare, or if the peer has left or filled up meanwhile, the
        // connection stays here.
        if copy.is_ok_and(|copy| peer.hand_over(copy)) {
            self.core.stats.handed_over += 1;
            None
        } else {
            Some(completion)
        }
    }

    /// The next connection from another channel, as a completion of our own unlimited
    /// accept. One for which there is no accept or no room now waits.
    pub(crate) fn accept_handed_over(&mut self) -> Option<Completion> {
        if !self.core.config.balance {
            return None;
        }
        for at in 0..self.partitioned.len() {
            let listener = self.partitioned[at];
            if !self.has_handed_over(listener) {
                continue;
            }
            let Some((op, kind)) = self.core.accept_with_room(listener) else { continue };
            let Ok(cookie) = self.cookie(listener) else { continue };
            let entry = self.core.handles.get(listener.index, listener.generation);
            let Some(fd) = entry.and_then(|entry| entry.member.as_ref()?.take_handed_over()) else {
                continue;
            };
            let peer =
                self.core.wants_peer(op).then(|| socket2::SockRef::from(&fd).peer_addr().ok()?.as_socket());
            let socket = match kind {
                AcceptAs::Fd => Ok(Source::Fd(fd)),
                AcceptAs::LwSocket => self.to_lwsocket(fd).map(Source::LwSocket),
            };
            // A refusal by the kernel closes the connection: its user hears of that.
            let result = match socket {
                Ok(socket) => Ok(Accepted { socket, pending: false, peer: peer.flatten() }),
                Err(ControlError::Io(error)) => Err(AcceptError::Exhausted(error)),
                Err(_) => Err(AcceptError::TableFull),
            };
            self.core.stats.handed_over += u64::from(result.is_ok());
            self.core.stats.completions += 1;
            return Some(Completion {
                handle: listener,
                cookie,
                op,
                event: Event::Accept { result, more: true },
            });
        }
        None
    }

    /// Lets what is queued make room for connections that wait to be taken over, before a
    /// wait that nothing else might end. True if there was something to do.
    pub(crate) fn make_room_for_handed_over(&mut self) -> Result<bool, DispatchError> {
        if !self.core.config.balance
            || self.core.queued() == 0
            || !self.partitioned.iter().any(|&listener| self.has_handed_over(listener))
        {
            return Ok(false);
        }
        self.turn(crate::engine::Wait::No)?;
        Ok(true)
    }

    fn has_handed_over(&self, listener: Handle) -> bool {
        let entry = self.core.handles.get(listener.index, listener.generation);
        entry.is_some_and(|entry| entry.member.as_ref().is_some_and(|member| member.has_handed_over()))
    }
}
