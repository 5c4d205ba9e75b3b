//! The queues of a handle: operations linked through the table that holds them.

use crate::core::{Core, HandleEntry, Op};
use crate::slab::Slab;

/// The end of a linked list of operations.
pub(crate) const NO_OP: u32 = u32::MAX;

/// A first-in first-out list of operations, linked through `Op::next`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpList {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
}

impl OpList {
    pub(crate) const EMPTY: OpList = OpList { head: NO_OP, tail: NO_OP, len: 0 };
}

impl Core {
    pub(crate) fn push_read(&mut self, handle: u32, op: u32) -> bool {
        Self::append(&mut self.handles, &mut self.ops, handle, op, |entry| &mut entry.reads)
    }

    pub(crate) fn push_write(&mut self, handle: u32, op: u32) -> bool {
        Self::append(&mut self.handles, &mut self.ops, handle, op, |entry| &mut entry.writes)
    }

    /// Appends the operation to a list of the handle; true if the list was empty.
    #[inline]
    fn append(
        handles: &mut Slab<HandleEntry>,
        ops: &mut Slab<Op>,
        handle: u32,
        op: u32,
        list: impl Fn(&mut HandleEntry) -> &mut OpList,
    ) -> bool {
        let Some(entry) = handles.at_mut(handle) else {
            return false;
        };
        let list = list(entry);
        let first = list.head == NO_OP;
        if first {
            list.head = op;
        } else if let Some(last) = ops.at_mut(list.tail) {
            last.next = op;
        }
        list.tail = op;
        list.len += 1;
        first
    }

    /// Puts the operation before all other writes of its handle.
    pub(crate) fn push_write_front(&mut self, handle: u32, op: u32) {
        self.prepend(handle, op, |entry| &mut entry.writes);
    }

    /// Puts the operation before all other reads of its handle.
    pub(crate) fn push_read_front(&mut self, handle: u32, op: u32) {
        self.prepend(handle, op, |entry| &mut entry.reads);
    }

    fn prepend(&mut self, handle: u32, op: u32, list: impl Fn(&mut HandleEntry) -> &mut OpList) {
        let Some(entry) = self.handles.at_mut(handle) else { return };
        let list = list(entry);
        let next = list.head;
        list.head = op;
        list.len += 1;
        if next == NO_OP {
            list.tail = op;
        }
        if let Some(op) = self.ops.at_mut(op) {
            op.next = next;
        }
    }

    /// Takes `op` out of a list of its handle, wherever it stands in it.
    pub(crate) fn unlink(&mut self, handle: u32, op: u32, list: impl Fn(&mut HandleEntry) -> &mut OpList) {
        let Some(entry) = self.handles.at_mut(handle) else {
            return;
        };
        let list = list(entry);
        let mut before = NO_OP;
        let mut at = list.head;
        while at != NO_OP && at != op {
            before = at;
            at = self.ops.at(at).map_or(NO_OP, |entry| entry.next);
        }
        if at == NO_OP {
            return;
        }
        let next = self.ops.at(at).map_or(NO_OP, |entry| entry.next);
        if before == NO_OP {
            list.head = next;
        } else if let Some(entry) = self.ops.at_mut(before) {
            entry.next = next;
        }
        if list.tail == op {
            list.tail = before;
        }
        list.len -= 1;
    }
}
