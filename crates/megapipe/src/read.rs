//! Reads: one after the other per handle, into the pool's memory or the caller's.

use crate::buffer::{DATAGRAM_OFFSET, ReadData};
use crate::completion::Event;
use crate::core::{Core, Op, OpKind, outcome};
use crate::engine::Done;
use crate::error::SubmitError;
use crate::id::OpId;
use crate::source::Shape;

impl Core {
    /// Queues a read behind the handle's other reads; on a disk file, where reads at
    /// offsets are independent, starts it at once.
    pub(crate) fn queue_read(&mut self, handle: u32, kind: OpKind) -> Result<OpId, (SubmitError, OpKind)> {
        let op = self.add_op(handle, kind)?;
        if self.handles.at(handle).is_some_and(|entry| entry.shape.is_listener()) {
            // recv(2) fails at once for TCP; a poll would wait for ever.
            self.done.push_back(Done::plain(op, -libc::ENOTCONN));
            return Ok(op);
        }
        let first = self.push_read(handle, op.index);
        let entry = self.handles.at(handle);
        if entry.is_some_and(|entry| entry.promoted.is_some()) {
            self.arrange_reads(handle);
        } else if first && !entry.is_some_and(|entry| entry.being_promoted) {
            self.start_read_in_turn(op);
        }
        Ok(op)
    }

    pub(crate) fn settle_read(&mut self, handle: u32, done: &Done) -> Option<Event> {
        let ended = !done.has(Done::MORE);
        if done.result == -libc::ENOBUFS {
            self.stats.pool_dry += 1;
            match self.op(done.op) {
                Some(op) if op.cancelled => self.push_cancelled(done.op),
                Some(_) => self.starved.push_back(done.op),
                None => {}
            }
            return None;
        }
        let entry = self.handles.at(handle)?;
        if entry.promoted.is_some() {
            return self.settle_promoted(handle, done);
        }
        if done.result > 0 {
            self.count_towards_offer(self.name_of(handle));
        }
        if done.result == -libc::ECANCELED
            && let Some(op) = self.op_mut(done.op)
            && std::mem::take(&mut op.paused)
            && !op.cancelled
        {
            if self.handles.at(handle).is_some_and(|entry| !entry.being_promoted) {
                self.start_read_in_turn(done.op);
            }
            return None;
        }
        let shape = self.handles.at(handle).map(|entry| entry.shape)?;
        let mut buffer = self.filled(done).map(|mut buffer| {
            if shape.is_datagram() {
                strip_datagram_header(&mut buffer);
            }
            buffer
        });
        // A connection of packets ends as a stream does (recv(2)): the engine then filled
        // in the empty header only.
        let end = shape == (Shape::Datagram { connected: true })
            && buffer.take_if(|buffer| buffer.is_empty()).is_some();
        let count = if end { 0 } else { done.result };
        if let Some(buffer) = &mut buffer {
            self.count_buffer(done.op, buffer);
        }
        let op = self.op_mut(done.op)?;
        let cancelled = op.cancelled;
        match &mut op.kind {
            OpKind::ReadStream { once, quota, .. } => {
                // Only end of stream ends the reading; an engine may stop for reasons of
                // its own (a full completion queue, one buffer after dryness). An empty
                // datagram does not: its header counts. Nor does io_uring's 0 for an
                // empty datagram that found no free buffer for its sender.
                let goes_on =
                    count > 0 || done.result == 0 && shape == (Shape::Datagram { connected: false });
                if ended && goes_on {
                    *once = quota.is_some();
                    if cancelled {
                        self.push_cancelled(done.op);
                    } else {
                        self.start_read_in_turn(done.op);
                    }
                } else if ended {
                    self.end_read(handle, done.op);
                }
                let len = buffer.as_ref().map_or(0, |buffer| buffer.len());
                let data = buffer.map_or(ReadData::None, ReadData::Buffer);
                Some(Event::Read { result: outcome(count).map(|_| len), data, more: goes_on })
            }
            OpKind::Read { data, .. } => {
                let mut data = std::mem::take(data);
                self.end_read(handle, done.op);
                let mut result = outcome(count);
                if let Some(buffer) = buffer {
                    result = result.map(|_| buffer.len());
                    data = ReadData::Buffer(buffer);
                } else {
                    data.set_filled(done.result.max(0) as usize);
                }
                Some(Event::Read { result, data, more: false })
            }
            _ => None,
        }
    }

    /// Takes a finished read (of a listener: accept) out of the tables and starts the next one
    /// of its handle.
    pub(crate) fn end_read(&mut self, handle: u32, op: OpId) {
        let first = self.handles.at(handle).is_some_and(|entry| entry.reads.head == op.index);
        self.unlink(handle, op.index, |entry| &mut entry.reads);
        self.remove_read(op.index);
        let Some(entry) = self.handles.at(handle) else { return };
        if entry.promoted.is_some() {
            return self.arrange_reads(handle);
        }
        if !first || entry.being_promoted {
            // The first is under way, or done and not delivered; or waits for its
            // promotion.
            return;
        }
        let next = entry.reads.head;
        // A cancelled one only waits for its completion to be delivered.
        if matches!(self.ops.at(next), Some(Op { started: false, cancelled: false, .. })) {
            self.start_read_in_turn(self.op_id(next));
        }
    }

    /// Starts a read. One that needs a buffer of a dry pool waits behind the starved
    /// reads; a stream of which the program holds enough buffers is started when it drops
    /// one.
    #[inline]
    pub(crate) fn start_read_in_turn(&mut self, op: OpId) {
        if self.op(op).is_some_and(Op::is_full) {
            return;
        }
        let of_stack = |op: &Op| self.is_of_stack(op.handle.index);
        if self.starved.is_empty() || self.op(op).is_some_and(of_stack) {
            return self.request_start(op);
        }
        match self.op(op) {
            Some(Op {
                kind: OpKind::ReadStream { .. } | OpKind::Read { data: ReadData::None, .. }, ..
            }) => {
                self.starved.push_back(op);
            }
            _ => self.request_start(op),
        }
    }

    /// Before a sleep: logs once for the process that no read can go on until the program
    /// drops buffers. Bytes that wait to be sent or delivered hold none here.
    #[inline]
    pub(crate) fn note_hoarded_pool(&self) {
        if !self.starved.is_empty() && self.queued() == 0 && self.done.is_empty() && !self.can_feed_more() {
            warn_hoarded(self.read_pool.count());
        }
    }

    /// Whether starved reads remain though there are buffers: those that were started for
    /// them may have nothing to read, and must not keep the others waiting.
    pub(crate) fn can_feed_more(&self) -> bool {
        !self.starved.is_empty() && self.read_pool.free_count() + self.buffers_stocked > 0
    }

    /// Starts as many starved reads as there are free buffers, oldest first, each for one
    /// buffer: none gets a second before all got one, and a dry pool costs no turns.
    pub(crate) fn feed_starved(&mut self) {
        let mut free = (self.read_pool.free_count() + self.buffers_stocked).saturating_sub(self.fed);
        while free > 0 {
            let Some(op) = self.starved.pop_front() else {
                return;
            };
            let Some(entry) = self.op_mut(op) else {
                continue;
            };
            if entry.started || entry.cancelled || entry.is_full() {
                continue;
            }
            // Promoted since it began to wait: its bytes come through the ring.
            let (index, watch) =
                (entry.handle.index, matches!(entry.kind, OpKind::ReadStream { watch: true, .. }));
            if !watch && self.handles.at(index).is_some_and(|entry| entry.promoted.is_some()) {
                continue;
            }
            let Some(entry) = self.op_mut(op) else { continue };
            if let OpKind::ReadStream { once, .. } = &mut entry.kind {
                *once = true;
            }
            self.request_start(op);
            self.fed += 1;
            free -= 1;
        }
    }
}

#[cold]
fn warn_hoarded(buffers: u16) {
    static LOGGED: std::sync::Once = std::sync::Once::new();
    LOGGED.call_once(|| {
        tracing::warn!(
            "reads wait: the program keeps all {buffers} buffers of a channel's pool; copy what is kept and drop \
             the buffers, bound what a stream keeps (read_stream_with_quota), or raise read_buffers"
        );
    });
}

/// Turns a buffer that holds a datagram in the engines' layout into one that shows the
/// payload and remembers the sender.
fn strip_datagram_header(buffer: &mut crate::buffer::Buffer) {
    let word = |buffer: &[u8], at: usize| {
        buffer.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let (name_len, payload_len, flags) = (word(buffer, 0), word(buffer, 8), word(buffer, 12));
    buffer.set_sender(name_len, flags & libc::MSG_TRUNC as u32 != 0);
    buffer.advance(DATAGRAM_OFFSET);
    buffer.truncate(payload_len as usize);
}

/// Pieces of one vectored read (IOV_MAX).
pub(crate) const PIECES_MAX: usize = 1024;

impl OpKind {
    /// A read's room, for giving it back to a caller whose read was refused.
    pub(crate) fn into_read_data(self) -> ReadData {
        match self {
            OpKind::Read { data, .. } => data,
            _ => ReadData::None,
        }
    }
}
