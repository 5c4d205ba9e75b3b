//! Closing: what a closed handle waits for, and when its entry is free.

use std::collections::VecDeque;
use std::time::Instant;

use crate::core::{Core, File, HandleEntry, Op, OpKind, State, WriteState};
use crate::engine::Request;
use crate::id::{Handle, OpId};
use crate::now::Now;
use crate::op_list::{NO_OP, OpList};
use crate::timer::FAR;

/// Deadlines of closes that wait for queued writes; all waits are equally long, so the
/// queue is ordered by itself.
pub(crate) type CloseDeadlines = VecDeque<(Instant, Handle)>;

impl Core {
    /// Closes a handle for its user: no completion of it is delivered from here on.
    pub(crate) fn close(&mut self, index: u32) {
        let Some(entry) = self.handles.at_mut(index) else {
            return;
        };
        entry.state = State::Draining;
        let draining = entry.writes.head != NO_OP || entry.write_state == WriteState::Fresh;
        self.leave_group(index);
        self.cancel_accepts_of(index);
        if draining {
            self.end_reads(index);
            let name = self.name_of(index);
            self.closes.push_back((Instant::now() + self.config.close_timeout.min(FAR), name));
        } else {
            self.finish_close(index);
        }
    }

    /// Ends reads and accepts, while queued writes still go out. What the peer sends from here
    /// on stays in the kernel, whose window stops it.
    fn end_reads(&mut self, index: u32) {
        self.drop_unstarted_of(index, |entry| &mut entry.reads);
        let mut at = self.handles.at(index).map_or(NO_OP, |entry| entry.reads.head);
        while let Some(op) = self.ops.at_mut(at) {
            let (next, cancelled) = (op.next, std::mem::replace(&mut op.cancelled, true));
            if !cancelled {
                self.request(Request::Cancel(self.op_id(at)));
            }
            at = next;
        }
    }

    /// Has the engine end pending operations and close the file.
    pub(crate) fn finish_close(&mut self, index: u32) {
        let Some(entry) = self.handles.at_mut(index) else {
            return;
        };
        if entry.state == State::Closing {
            return;
        }
        entry.state = State::Closing;
        self.leave_group(index);
        self.drop_unstarted(index);
        self.request(Request::Close(index));
    }

    pub(crate) fn end_of_closed(&mut self, op: OpId, handle: u32) {
        let disconnect = matches!(self.op(op), Some(Op { kind: OpKind::Disconnect(_), .. }));
        if disconnect {
            self.settle_disconnect(op, handle);
            return;
        }
        if matches!(self.op(op), Some(Op { kind: OpKind::Read { .. } | OpKind::ReadStream { .. }, .. })) {
            self.unlink(handle, op.index, |entry| &mut entry.reads);
        }
        if matches!(self.op(op), Some(Op { kind: OpKind::Accept(_), .. })) {
            self.unlink(handle, op.index, |entry| &mut entry.reads);
            self.discard_all_accepted(op);
        }
        self.remove_read(op.index);
        self.release_if_ended(handle);
    }

    /// Removes every queued operation of the handle that the engine does not have.
    /// Results that wait to be delivered then have no operation, and are discarded.
    pub(crate) fn drop_unstarted(&mut self, index: u32) {
        self.drop_unstarted_of(index, |entry| &mut entry.reads);
        if self.handles.at(index).is_some_and(|entry| entry.write_state != WriteState::Held) {
            self.drop_unstarted_of(index, |entry| &mut entry.writes);
        }
    }

    fn drop_unstarted_of(&mut self, index: u32, list: fn(&mut HandleEntry) -> &mut OpList) {
        let Some(entry) = self.handles.at_mut(index) else {
            return;
        };
        let mut at = list(entry).head;
        let mut kept = OpList::EMPTY;
        while at != NO_OP {
            let Some(op) = self.ops.at_mut(at) else { break };
            let next = op.next;
            if op.started {
                op.next = NO_OP;
                let before = kept.tail;
                if before == NO_OP {
                    kept.head = at;
                }
                kept.tail = at;
                kept.len += 1;
                if let Some(before) = self.ops.at_mut(before) {
                    before.next = at;
                }
            } else {
                if matches!(op.kind, OpKind::Accept(_)) {
                    self.discard_all_accepted(self.op_id(at));
                }
                self.remove_read(at);
            }
            at = next;
        }
        if let Some(entry) = self.handles.at_mut(index) {
            *list(entry) = kept;
        }
    }

    /// The file of a handle that is being closed or handed back, for the engine to end.
    pub(crate) fn take_file(&mut self, index: u32) -> File {
        match self.handles.at_mut(index) {
            Some(entry) => std::mem::replace(&mut entry.file, File::None),
            None => File::None,
        }
    }

    /// Frees the entry of a closed handle once the engine holds nothing of it. Engines
    /// call it at the end of a `Request::Close` or `Request::Detach`.
    pub(crate) fn release_if_ended(&mut self, index: u32) {
        let Some(entry) = self.handles.at(index) else {
            return;
        };
        if entry.state == State::Closing && entry.in_engine == 0 && matches!(entry.file, File::None) {
            self.drop_unstarted(index);
            self.handles.remove(index);
        }
    }

    /// Whether a close waits for queued writes.
    pub(crate) fn is_closing(&self) -> bool {
        self.closes.iter().any(|&(_, handle)| self.is_draining(handle))
    }

    fn is_draining(&self, handle: Handle) -> bool {
        let entry = self.handles.get(handle.index, handle.generation);
        entry.is_some_and(|entry| entry.state == State::Draining)
    }

    /// A handle whose close has waited too long for its queued writes.
    pub(crate) fn overdue_close(&mut self, now: &Now) -> Option<u32> {
        while let Some(&(deadline, handle)) = self.closes.front() {
            let draining = self.is_draining(handle);
            if draining && deadline > now.get() {
                return None;
            }
            self.closes.pop_front();
            if draining {
                self.stats.close_timeouts += 1;
                return Some(handle.index);
            }
        }
        None
    }
}
