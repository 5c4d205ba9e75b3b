//! Writes: in order and whole per handle, also when the kernel takes part of them.
//!
//! A handle has at most one send in the kernel. What queues behind it goes out in one
//! piece with the next send (a message socket sends one message at a time).

use std::net::{Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};

use socket2::SockAddr;

use crate::buffer::WriteData;
use crate::completion::{Completion, Event};
use crate::core::{Core, Op, OpKind, Room, State, WriteState, outcome};
use crate::engine::{Done, Request};
use crate::error::SubmitError;
use crate::id::{Handle, OpId};
use crate::op_list::NO_OP;

/// Parts of one send (IOV_MAX is 1024; more than this gains nothing).
pub(crate) const PARTS_MAX: usize = 64;

/// Where a datagram goes. Internet addresses are kept inline, so that sending one
/// allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) enum Destination {
    /// The connected peer.
    #[default]
    Peer,
    V4(SocketAddrV4),
    V6(SocketAddrV6),
    Other(Box<SockAddr>),
}

impl From<&SockAddr> for Destination {
    fn from(address: &SockAddr) -> Self {
        match address.as_socket() {
            Some(SocketAddr::V4(v4)) => Destination::V4(v4),
            Some(SocketAddr::V6(v6)) => Destination::V6(v6),
            None => Destination::Other(Box::new(address.clone())),
        }
    }
}

impl Destination {
    pub(crate) fn to_address(&self) -> Option<SockAddr> {
        match self {
            Destination::Peer => None,
            Destination::V4(v4) => Some(SockAddr::from(*v4)),
            Destination::V6(v6) => Some(SockAddr::from(*v6)),
            Destination::Other(address) => Some((**address).clone()),
        }
    }
}

/// A quiet write that is in no queue; see [`Core::fresh`].
pub(crate) struct Fresh {
    pub(crate) handle: u32,
    pub(crate) data: WriteData,
    /// A wake-up of a promoted connection's peer, and not a write of the program.
    pub(crate) wake_up: bool,
}

/// The engine's next step for a handle's write queue.
pub(crate) enum NextWrites {
    /// Nothing is queued any more.
    Nothing,
    /// Shut these directions down; this operation's [`Done`] has the outcome.
    Disconnect(OpId, Shutdown),
    /// Send what [`Core::for_each_queued`] shows.
    Send {
        /// Whether the outcome must be handed out (or acted on) without sleeping first.
        urgent: bool,
    },
}

impl Core {
    pub(crate) fn queue_write(
        &mut self,
        handle: u32,
        mut kind: OpKind,
    ) -> Result<OpId, (SubmitError, OpKind)> {
        let Some(entry) = self.handles.at_mut(handle) else {
            return Err((SubmitError::StaleHandle, kind));
        };
        // Before any room is promised: a full table of operations refuses the write.
        if self.ops.is_full() {
            return Err((SubmitError::OperationsFull, kind));
        }
        let fresh = entry.write_state == WriteState::Fresh;
        if entry.writes.len + u32::from(fresh) >= self.config.write_queue_max {
            entry.room = Room::Asked;
            return Err((SubmitError::QueueFull, kind));
        }
        entry.room = Room::Unasked;
        if entry.write_blocked
            && let OpKind::Write { data, .. } = &mut kind
        {
            data.leave_pool();
        }
        let op = self.add_op(handle, kind)?;
        if fresh {
            self.queue_behind_all(handle);
        }
        self.push_write(handle, op.index);
        self.request_writes(handle);
        Ok(op)
    }

    /// Queues a quiet write as a fresh send, if it is a plain one on an idle stream; else
    /// gives the data back. Fresh sends go before requests, so there must be none that it
    /// may not overtake: nothing but a read is under way.
    #[inline]
    pub(crate) fn queue_fresh(&mut self, handle: Handle, data: WriteData) -> Result<(), WriteData> {
        match self.handles.get_mut(handle.index, handle.generation) {
            Some(entry)
                if entry.write_state == WriteState::Idle
                    && entry.state == State::Open
                    && entry.shape.is_stream()
                    && !entry.write_blocked
                    && !entry.file.is_of_stack()
                    && entry.in_engine
                        == u32::from(self.ops.at(entry.reads.head).is_some_and(|op| op.started))
                    && !data.part().is_empty() =>
            {
                entry.write_state = WriteState::Fresh;
                self.fresh.push_back(Fresh { handle: handle.index, data, wake_up: false });
                Ok(())
            }
            _ => Err(data),
        }
    }

    /// A second write comes before the fresh send has left: both go out as one, from the
    /// queue.
    pub(crate) fn queue_behind_all(&mut self, handle: u32) {
        let Some(place) = self.fresh.iter().position(|fresh| fresh.handle == handle && !fresh.wake_up) else {
            return;
        };
        // Not by swapping: wake-ups of this handle stay before it.
        let Some(Fresh { data, .. }) = self.fresh.remove(place) else { return };
        self.queue_as_first(handle, data);
        if let Some(entry) = self.handles.at_mut(handle) {
            entry.write_state = WriteState::Idle;
        }
    }

    pub(crate) fn queue_as_first(&mut self, handle: u32, data: WriteData) {
        let name = self.name_of(handle);
        let kind = OpKind::Write { data, quiet: true, to: Destination::Peer, offset: None };
        let (index, _) = self.ops.insert_over(Op::new(name, kind));
        self.push_write_front(handle, index);
    }

    /// For the engine: whether a fresh send is still wanted, and whether its outcome must
    /// be acted on without sleeping first.
    #[inline]
    pub(crate) fn fresh_is_urgent(&self, handle: u32) -> Option<bool> {
        let entry = self.handles.at(handle)?;
        match entry.state {
            State::Open => Some(false),
            State::Draining => Some(true),
            State::Closing => None,
        }
    }

    /// The engine reports the result of a fresh send; see [`Core::settle_writes`]. One
    /// that the kernel did not accept as a whole becomes an operation at the head of its
    /// queue.
    #[inline]
    pub(crate) fn settle_fresh(&mut self, handle: u32, data: WriteData, result: i32, blocked: bool) {
        if result < 0 || result as usize != data.part().len() {
            self.settle_unfinished_fresh(handle, data, result, blocked);
            return;
        }
        let Some(entry) = self.handles.at_mut(handle) else { return };
        entry.write_state = WriteState::Idle;
        if entry.promoted.is_some() {
            self.promoted_kernel_accepted(handle, result);
        }
        let Some(entry) = self.handles.at_mut(handle) else { return };
        if entry.writes.head != NO_OP {
            self.request_writes(handle);
        } else if entry.state == State::Draining {
            self.finish_close(handle);
        }
    }

    #[cold]
    fn settle_unfinished_fresh(&mut self, handle: u32, data: WriteData, result: i32, blocked: bool) {
        self.queue_as_first(handle, data);
        self.settle_writes(handle, result, blocked);
    }

    #[inline]
    pub(crate) fn request_writes(&mut self, handle: u32) {
        if let Some(entry) = self.handles.at_mut(handle)
            && entry.write_state == WriteState::Idle
        {
            entry.write_state = WriteState::Requested;
            self.request(Request::Writes(handle));
        }
    }

    /// For the engine, at a `Request::Writes`: what to send. The engine has the queue
    /// until `settle_writes` (or the disconnect's `Done`).
    #[inline]
    pub(crate) fn next_writes(&mut self, handle: u32) -> NextWrites {
        if let Some(entry) = self.handles.at(handle)
            && entry.promoted.is_some()
            && matches!(self.ops.at(entry.writes.head), Some(Op { kind: OpKind::Write { .. }, .. }))
        {
            self.promoted_about_to_send(handle);
        }
        let Some(entry) = self.handles.at_mut(handle) else {
            return NextWrites::Nothing;
        };
        let first = entry.writes.head;
        if first == NO_OP || entry.state == State::Closing {
            entry.write_state = WriteState::Idle;
            return NextWrites::Nothing;
        }
        entry.write_state = WriteState::InEngine;
        let draining = entry.state == State::Draining;
        let Some(op) = self.ops.at_mut(first) else {
            return NextWrites::Nothing;
        };
        match &op.kind {
            OpKind::Disconnect(how) => {
                let how = *how;
                op.started = true;
                entry.in_engine += 1;
                NextWrites::Disconnect(self.op_id(first), how)
            }
            OpKind::Write { quiet, .. } => {
                let urgent = draining || !quiet || op.next != NO_OP;
                NextWrites::Send { urgent }
            }
            _ => NextWrites::Nothing,
        }
    }

    /// Whether bytes of the handle wait to be accepted by the kernel.
    pub(crate) fn has_queued_writes(&self, handle: u32) -> bool {
        let Some(entry) = self.handles.at(handle) else { return false };
        let mut at = entry.writes.head;
        while let Some(Op { kind: OpKind::Disconnect(_), next, .. }) = self.ops.at(at) {
            at = *next;
        }
        at != NO_OP || entry.write_state == WriteState::Fresh
    }

    /// Calls `f` with the unsent parts that may go out in one send, at most
    /// [`PARTS_MAX`], and returns their bytes.
    #[inline]
    pub(crate) fn for_each_queued<'a>(&'a self, handle: u32, f: &mut dyn FnMut(&'a [u8])) -> usize {
        let Some(entry) = self.handles.at(handle) else {
            return 0;
        };
        let stream = entry.shape.is_stream();
        let mut at = entry.writes.head;
        let (mut parts, mut bytes) = (0, 0);
        while let Some(Op { kind: OpKind::Write { data, .. }, written, next, .. }) = self.ops.at(at) {
            data.for_each_part(*written, &mut |part| {
                if parts < PARTS_MAX {
                    parts += 1;
                    bytes += part.len();
                    f(part);
                }
            });
            if !stream || parts == PARTS_MAX {
                break;
            }
            at = *next;
        }
        bytes
    }

    /// Where the first queued write goes: to which address, at which offset of a file.
    pub(crate) fn next_write_target(&self, handle: u32) -> (&Destination, Option<u64>) {
        let head = self.handles.at(handle).map_or(NO_OP, |entry| entry.writes.head);
        match self.ops.at(head) {
            Some(Op { kind: OpKind::Write { to, offset, .. }, written, .. }) => {
                (to, offset.map(|offset| offset + *written as u64))
            }
            _ => (&Destination::Peer, None),
        }
    }

    /// The handle's writes wait for room, which only their peer can make: none of them keeps a
    /// buffer of a pool from others meanwhile.
    #[cold]
    pub(crate) fn block_writes(&mut self, handle: u32) {
        let Some(entry) = self.handles.at_mut(handle) else { return };
        entry.write_blocked = true;
        let mut at = entry.writes.head;
        while let Some(op) = self.ops.at_mut(at) {
            if let OpKind::Write { data, .. } = &mut op.kind {
                data.leave_pool();
            }
            at = op.next;
        }
    }

    /// The engine keeps a send beyond the turn: the queue's data stays until it is
    /// settled.
    pub(crate) fn hold_writes(&mut self, handle: u32) {
        if let Some(entry) = self.handles.at_mut(handle) {
            entry.write_state = WriteState::Held;
            entry.in_engine += 1;
        }
    }

    /// The engine reports the result of a send of this handle's queue: bytes accepted, or
    /// a negative errno. `blocked`: the kernel accepted less than it was given for want
    /// of room; the next send waits for room.
    pub(crate) fn settle_writes(&mut self, handle: u32, result: i32, blocked: bool) {
        let Some(entry) = self.handles.at_mut(handle) else {
            return;
        };
        if entry.write_state == WriteState::Held {
            entry.in_engine -= 1;
        }
        entry.write_state = WriteState::Idle;
        entry.write_blocked = blocked;
        if entry.promoted.is_some() {
            self.promoted_kernel_accepted(handle, result);
        }
        let Some(entry) = self.handles.at_mut(handle) else { return };
        if entry.state == State::Closing {
            self.drop_unstarted(handle);
            self.release_if_ended(handle);
            return;
        }
        let stream = !entry.shape.is_datagram();
        if result == -libc::ECANCELED {
            self.end_cancelled_writes(handle);
        } else if result < 0 {
            self.fail_writes(handle, result, stream);
        } else {
            // Without room nothing was accepted, not even a message; an empty one counts
            // 0 bytes, too.
            if result > 0 || !blocked {
                self.finish_writes(handle, result as usize, stream);
            }
            self.end_cancelled_writes(handle);
        }
        if blocked {
            self.block_writes(handle);
        }
        let Some(entry) = self.handles.at(handle) else {
            return;
        };
        if entry.takes_back {
            self.own_queued_writes(handle);
        }
        let Some(entry) = self.handles.at(handle) else {
            return;
        };
        if entry.writes.head != NO_OP {
            self.request_writes(handle);
        } else if entry.state == State::Draining {
            self.finish_close(handle);
        }
    }

    fn finish_writes(&mut self, handle: u32, mut bytes: usize, stream: bool) {
        loop {
            let Some(entry) = self.handles.at(handle) else {
                return;
            };
            let at = entry.writes.head;
            let surfaces = entry.state == State::Open;
            let Some(op) = self.ops.at_mut(at) else {
                return;
            };
            let OpKind::Write { data, quiet, .. } = &op.kind else {
                return;
            };
            let left = data.len() - op.written;
            if stream && bytes < left {
                op.written += bytes;
                return;
            }
            bytes -= left.min(bytes);
            let (total, quiet) = (op.written + left, *quiet);
            op.written = total;
            self.pop_write(handle, at);
            if quiet || !surfaces {
                self.ops.remove(at);
            } else {
                let id = self.op_id(at);
                self.done.push_back(Done::plain(id, total.min(i32::MAX as usize) as i32));
            }
            if bytes == 0 {
                return;
            }
        }
    }

    /// A broken stream fails every queued write; a message that could not be sent fails
    /// alone.
    fn fail_writes(&mut self, handle: u32, error: i32, stream: bool) {
        loop {
            let Some(entry) = self.handles.at(handle) else {
                return;
            };
            let at = entry.writes.head;
            let surfaces = entry.state == State::Open;
            if !matches!(self.ops.at(at), Some(Op { kind: OpKind::Write { .. }, .. })) {
                return;
            }
            self.pop_write(handle, at);
            if surfaces {
                let id = self.op_id(at);
                self.done.push_back(Done::plain(id, error));
            } else {
                self.ops.remove(at);
            }
            if !stream {
                return;
            }
        }
    }

    fn pop_write(&mut self, handle: u32, op: u32) {
        self.unlink(handle, op, |entry| &mut entry.writes);
        let name = self.name_of(handle);
        let Some(entry) = self.handles.at_mut(handle) else { return };
        if entry.room == Room::Asked && entry.writes.len <= self.config.write_queue_max / 2 {
            entry.room = Room::Due;
            self.writable.push_back(name);
        }
    }

    /// The next handle whose refused write would be accepted now.
    pub(crate) fn next_writable(&mut self) -> Option<Completion> {
        while let Some(handle) = self.writable.pop_front() {
            let Ok(entry) = self.open_entry(handle) else { continue };
            // A write may have been queued, or refused again, meanwhile.
            if entry.room == Room::Due {
                entry.room = Room::Unasked;
                let cookie = entry.cookie;
                self.stats.completions += 1;
                return Some(Completion { handle, cookie, op: OpId::NONE, event: Event::Writable });
            }
        }
        None
    }

    pub(crate) fn settle_write(&mut self, done: &Done) -> Option<Event> {
        let op = self.ops.remove(done.op.index)?;
        let OpKind::Write { data, .. } = op.kind else {
            return None;
        };
        let result = outcome(done.result).map(|_| op.written);
        Some(Event::Write { result, data })
    }

    /// A disconnect has ended: the queue behind it goes on.
    pub(crate) fn settle_disconnect(&mut self, op: OpId, handle: u32) {
        self.pop_write(handle, op.index);
        self.ops.remove(op.index);
        let Some(entry) = self.handles.at_mut(handle) else {
            return;
        };
        entry.write_state = WriteState::Idle;
        if entry.writes.head != NO_OP {
            self.request_writes(handle);
        } else if entry.state == State::Draining {
            self.finish_close(handle);
        } else {
            self.release_if_ended(handle);
        }
    }

    /// Cancels a queued write or disconnect of which the kernel accepted nothing. A write
    /// that was sent in part goes on: the stream would be torn otherwise.
    pub(crate) fn cancel_write(&mut self, op: OpId) {
        let Some(entry) = self.op_mut(op) else { return };
        if entry.started || entry.written > 0 {
            return;
        }
        entry.cancelled = true;
        let handle = entry.handle.index;
        match self.handles.at(handle) {
            Some(entry) if entry.write_state == WriteState::Held => {
                self.request(Request::CancelWrites(handle));
            }
            Some(_) => self.end_cancelled_writes(handle),
            None => {}
        }
    }

    /// Ends the queued writes that were cancelled, unless the kernel accepted part of
    /// them.
    fn end_cancelled_writes(&mut self, handle: u32) {
        let mut at = self.handles.at(handle).map_or(NO_OP, |entry| entry.writes.head);
        while let Some(op) = self.ops.at(at) {
            let (id, next) = (self.op_id(at), op.next);
            if op.cancelled && op.written == 0 && !op.started {
                self.pop_write(handle, at);
                if let Some(op) = self.ops.at_mut(at)
                    && let OpKind::Disconnect(how) = op.kind
                {
                    // It is in no queue any more.
                    op.kind = OpKind::Shutdown(how);
                }
                self.done.push_back(Done::plain(id, -libc::ECANCELED));
            }
            at = next;
        }
    }
}

impl OpKind {
    /// A write's data, for giving it back to a caller whose write was refused.
    pub(crate) fn into_write_data(self) -> WriteData {
        match self {
            OpKind::Write { data, .. } => data,
            _ => WriteData::None,
        }
    }
}
