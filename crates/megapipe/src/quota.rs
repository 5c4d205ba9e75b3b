//! Quotas of read streams: how many buffers of one stream the program may hold.
//!
//! A stream with a quota asks the engine for one buffer at a time, and for the next one when
//! the last was handed out. While the program holds as many as the quota allows, nothing is
//! asked for: the bound is exact. A dropped buffer names its stream to its pool, and the
//! channel restarts the stream before it checks rings and before it sleeps.

use std::num::NonZeroU16;
use std::rc::Rc;

use crate::buffer::Buffer;
use crate::core::{Core, Op, OpKind};
use crate::id::OpId;

/// How many buffers of a stream the program holds, and may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    most: NonZeroU16,
    held: u16,
}

impl Quota {
    pub(crate) fn new(most: NonZeroU16) -> Quota {
        Quota { most, held: 0 }
    }

    fn is_full(&self) -> bool {
        self.held >= self.most.get()
    }
}

impl Op {
    /// Whether this is a stream that reads no more until the program drops a buffer of it.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.kind, OpKind::ReadStream { quota: Some(quota), .. } if quota.is_full())
    }
}

impl Core {
    /// Counts a buffer that is handed out towards the quota of its stream, if it has one.
    #[inline]
    pub(crate) fn count_buffer(&mut self, op: OpId, buffer: &mut Buffer) {
        let Some(Op { kind: OpKind::ReadStream { quota: Some(quota), .. }, .. }) = self.op_mut(op) else {
            return;
        };
        debug_assert!(!quota.is_full(), "a full stream was read");
        quota.held += 1;
        let full = quota.is_full();
        self.full_streams += u32::from(full);
        buffer.count_towards(op);
    }

    /// Restarts the streams whose buffers were dropped since the last call.
    #[inline]
    pub(crate) fn take_returned(&mut self) {
        if self.has_quotas {
            self.take_all_returned();
        }
    }

    fn take_all_returned(&mut self) {
        let pools = [Some(&self.read_pool), Some(&self.ring_pool), self.stack_pool.as_ref()];
        let returned = pools.map(|pool| pool.filter(|pool| pool.has_returned()).map(Rc::clone));
        for pool in returned.into_iter().flatten() {
            pool.take_returned(&mut |stream| self.buffer_returned(stream));
        }
    }

    /// A buffer of this stream was dropped. The stream may be over.
    fn buffer_returned(&mut self, id: OpId) {
        let Some(op) = self.op_mut(id) else { return };
        let (handle, was_full, cancelled) = (op.handle.index, op.is_full(), op.cancelled);
        let OpKind::ReadStream { quota: Some(quota), .. } = &mut op.kind else { return };
        quota.held -= 1;
        if !was_full {
            return;
        }
        self.full_streams -= 1;
        let Some(entry) = self.handles.at(handle) else { return };
        if entry.promoted.is_some() {
            self.arrange_reads(handle);
        } else if !entry.being_promoted && !cancelled {
            // A full stream is the first of its handle's reads, as it has read.
            self.start_read_in_turn(id);
        }
    }

    /// Takes a read or an accept that is over out of the table.
    pub(crate) fn remove_read(&mut self, op: u32) {
        let full = self.ops.remove(op).is_some_and(|op| op.is_full());
        self.full_streams -= u32::from(full);
    }
}
