//! Receiving on a promoted connection: bytes of the ring, and of the TCP path, where
//! reads go on for wake-ups, spilled bytes and the end of the stream.

mod calls;
mod write;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use promote::{Connection, Doorbells, KernelEnd, Next, PeerLoop};
use ring::{Corrupt, Front, WakeUp};
use sys::doorbell::Kind;

use crate::buffer::{Buffer, ReadData};
use crate::completion::{Completion, Event};
use crate::core::{Core, Op, OpKind, State, outcome};
use crate::engine::{Done, Request};
use crate::id::{Handle, OpId};
use crate::op_list::NO_OP;

/// Buffers of bytes from the kernel that a connection may hold without a reader; the
/// kernel keeps further ones.
const KERNEL_BUFFERS_MAX: usize = 8;

/// The state of a promoted connection.
pub(crate) struct Promoted {
    pub(crate) connection: Connection,
    /// The peer's loop: its index in `Promoter::other_loops`.
    pub(crate) other_loop: usize,
    /// Keeps that index in use.
    _peer_loop: Arc<PeerLoop>,
    /// Both endpoints'. The engine watches our own.
    pub(crate) doorbells: Option<Doorbells>,
    /// Wake-ups by our own doorbell since it was emptied, far more often than its page
    /// fills up. (Each write is an edge, also one that finds bytes there.)
    doorbell_wakes: u8,
    /// Bytes read from the kernel and not yet delivered, in order.
    kernel_bytes: VecDeque<KernelBytes>,
    /// Number of those bytes.
    unread: usize,
    /// A wake-up of the peer is queued or in the kernel.
    pub(crate) wake_up_under_way: Option<WakeUp>,
    /// Polled whenever the channel is awake.
    pub(crate) hot: bool,
    /// Sleeps of the channel since bytes last came.
    pub(crate) sleeps: u8,
    /// Masked though it is hot: the kernel connection cannot be read.
    pub(crate) masked: bool,
    /// The peer violated the protocol.
    pub(crate) broken: bool,
}

/// Bytes from the kernel that no read has consumed.
enum KernelBytes {
    Pooled(Buffer),
    /// Copied, so that the pool's buffer serves others; unread from the offset on.
    Copied(Vec<u8>, usize),
}

impl KernelBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            KernelBytes::Pooled(buffer) => buffer,
            KernelBytes::Copied(bytes, offset) => &bytes[*offset..],
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            KernelBytes::Pooled(buffer) => buffer.advance(count),
            KernelBytes::Copied(_, offset) => *offset += count,
        }
    }

    fn leave_pool(&mut self) {
        if let KernelBytes::Pooled(buffer) = self {
            *self = KernelBytes::Copied(buffer.to_vec(), 0);
        }
    }
}

/// Whether a wake-up over TCP would be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderState {
    /// A read waits for bytes, and the kernel connection is being read.
    Reading,
    /// A read waits for bytes, but the kernel connection cannot be read for now.
    Blocked,
    /// No read waits for bytes.
    Absent,
}

impl Promoted {
    pub(crate) fn new(
        connection: Connection,
        other_loop: usize,
        peer_loop: Arc<PeerLoop>,
        doorbells: Option<Doorbells>,
    ) -> Promoted {
        let mut promoted = Promoted {
            connection,
            other_loop,
            _peer_loop: peer_loop,
            doorbells,
            doorbell_wakes: 0,
            kernel_bytes: VecDeque::new(),
            unread: 0,
            wake_up_under_way: None,
            hot: false,
            sleeps: 0,
            masked: false,
            broken: false,
        };
        promoted.mask();
        let by = promoted.wake_up();
        promoted.connection.polled_by(0, by);
        promoted
    }

    /// How the peer wakes this endpoint.
    pub(crate) fn wake_up(&self) -> WakeUp {
        if self.doorbells.is_some() { WakeUp::Doorbell } else { WakeUp::Tcp }
    }

    /// Asks the peer for a wake-up. True: bytes are here already.
    pub(crate) fn arm(&mut self) -> bool {
        let by = self.wake_up();
        self.connection.arm(by).unwrap_or(true)
    }

    /// Asks for no wake-ups: nothing would be read for now.
    pub(crate) fn mask(&mut self) {
        let by = self.wake_up();
        self.connection.mask_by(by);
    }

    /// Whether closing now must reset the connection, as closing with unread bytes does
    /// on TCP.
    pub(crate) fn needs_reset(&mut self) -> bool {
        // Some lay behind bytes that were delivered since.
        self.drop_wake_ups();
        self.broken || self.unread > 0 || self.connection.has_unread()
    }

    /// Whether writes go to the kernel: the connection has failed, or is ending.
    pub(crate) fn sends_to_kernel(&self) -> bool {
        self.broken || self.connection.stays_with_kernel()
    }

    /// Discards `count` bytes read behind all others if they are wake-ups; false if they
    /// are not.
    pub(crate) fn drop_if_wake_ups(&mut self, count: usize) -> bool {
        let wake_ups = self.unread == 0
            && matches!(self.connection.front(count), Ok(Front::WakeUps(all)) if all == count as u64);
        if wake_ups {
            self.connection.kernel_delivered(count);
        }
        wake_ups
    }

    pub(crate) fn has_kernel_bytes(&self) -> bool {
        !self.kernel_bytes.is_empty()
    }

    /// The peer violated the protocol: the next read reports a reset.
    #[cold]
    fn break_off(&mut self, what: Corrupt) -> Next {
        if !std::mem::replace(&mut self.broken, true) {
            tracing::warn!("a promoted connection is reset: {what}");
        }
        Next::End(KernelEnd::Failed(libc::ECONNRESET))
    }

    #[inline(always)]
    fn next(&mut self) -> Next {
        if self.broken {
            return Next::End(KernelEnd::Failed(libc::ECONNRESET));
        }
        self.connection.next(self.unread).unwrap_or_else(|corrupt| self.break_off(corrupt))
    }

    /// Discards the wake-ups at the front of the bytes from the kernel.
    fn drop_wake_ups(&mut self) {
        while self.unread > 0
            && let Ok(Front::WakeUps(count)) = self.connection.front(self.unread)
        {
            self.drop_bytes(count as usize);
        }
    }

    fn drop_bytes(&mut self, count: usize) {
        self.connection.kernel_delivered(count);
        self.unread -= count;
        let mut left = count;
        while let Some(first) = self.kernel_bytes.front_mut() {
            let len = first.bytes().len();
            if len > left {
                first.advance(left);
                return;
            }
            left -= len;
            self.kernel_bytes.pop_front();
        }
    }
}

impl Core {
    pub(crate) fn promoted(&mut self, handle: u32) -> Option<&mut Promoted> {
        self.handles.at_mut(handle)?.promoted.as_deref_mut()
    }

    /// The first read that waits for bytes. The channel's own read, which stands before
    /// it, does not; nor does a stream of which the program holds all the buffers that
    /// its quota allows.
    fn promoted_reader(&self, handle: u32) -> Option<u32> {
        let entry = self.handles.at(handle)?;
        if entry.state != State::Open {
            return None;
        }
        let head = entry.reads.head;
        let first = match self.ops.at(head)? {
            Op { kind: OpKind::ReadStream { watch: true, .. }, next, .. } => *next,
            _ => head,
        };
        // A cancelled one only waits for its completion to be delivered.
        let reader = self.ops.at(first)?;
        (!reader.cancelled && !reader.is_full()).then_some(first)
    }

    /// A read was queued or ended on a promoted connection. Makes the connection hot, and
    /// keeps a read of the channel's own pending in the kernel.
    pub(crate) fn arrange_reads(&mut self, handle: u32) {
        let reader = self.promoted_reader(handle);
        let Some(entry) = self.handles.at_mut(handle) else { return };
        let (head, state) = (entry.reads.head, entry.state);
        let Some(promoted) = entry.promoted.as_deref_mut() else { return };
        let enough =
            promoted.connection.kernel_has_ended() || promoted.kernel_bytes.len() >= KERNEL_BUFFERS_MAX;
        if !promoted.hot && reader.is_some() {
            promoted.hot = true;
            promoted.sleeps = 0;
            promoted.masked = false;
            promoted.connection.disarm();
            let name = self.name_of(handle);
            self.heated.push(name);
        }
        let watched =
            matches!(self.ops.at(head), Some(Op { kind: OpKind::ReadStream { watch: true, .. }, .. }));
        if reader.is_none() || watched || enough || state != State::Open {
            return;
        }
        let name = self.name_of(handle);
        let kind = OpKind::ReadStream { once: false, watch: true, quota: None };
        let (watch, _) = self.ops.insert_over(Op::new(name, kind));
        self.push_read_front(handle, watch);
        let watch = self.op_id(watch);
        self.start_read_in_turn(watch);
    }

    /// The connection's doorbell woke the channel.
    pub(crate) fn doorbell_woke(&mut self, handle: u32) {
        let Some(promoted) = self.promoted(handle) else { return };
        promoted.doorbell_wakes = promoted.doorbell_wakes.wrapping_add(1);
        if let Some(Doorbells { own, kind, .. }) = &promoted.doorbells
            && (promoted.doorbell_wakes == 0 || *kind == Kind::Queue || !sys::doorbell::may_stay_unread())
        {
            sys::doorbell::empty(own.as_fd(), *kind);
        }
        let woke_at = promoted.connection.peer_woke_at();
        self.spin.woken_at(woke_at);
        self.answer_if_demoted(handle);
        self.arrange_reads(handle);
    }

    /// Whether a wake-up over TCP of this connection would be read.
    pub(crate) fn reader_state(&self, handle: u32) -> ReaderState {
        let watch = self.handles.at(handle).and_then(|entry| self.ops.at(entry.reads.head));
        match self.promoted_reader(handle) {
            None => ReaderState::Absent,
            Some(_) if watch.is_some_and(|op| op.started) => ReaderState::Reading,
            Some(_) => ReaderState::Blocked,
        }
    }

    /// Without a reader, and with KERNEL_BUFFERS_MAX buffers read, cancels the channel's
    /// read: the kernel's window then stops the peer. Copies the bytes: other connections
    /// need the buffers.
    fn pause_watch(&mut self, handle: u32, watch: OpId) {
        if self.promoted_reader(handle).is_some() {
            return;
        }
        let Some(promoted) = self.promoted(handle) else { return };
        if promoted.kernel_bytes.len() < KERNEL_BUFFERS_MAX {
            return;
        }
        promoted.kernel_bytes.iter_mut().for_each(KernelBytes::leave_pool);
        if let Some(op) = self.op_mut(watch)
            && op.started
            && !std::mem::replace(&mut op.cancelled, true)
        {
            self.request(Request::Cancel(watch));
        }
    }

    /// A read of a promoted connection's kernel side has a result.
    pub(crate) fn settle_promoted(&mut self, handle: u32, done: &Done) -> Option<Event> {
        let ended = !done.has(Done::MORE);
        let buffer = self.filled(done);
        // The kernel has the channel's own read only; others are here because they were
        // cancelled.
        let (watch, cancelled) = match self.op(done.op)? {
            Op { kind: OpKind::ReadStream { watch, .. }, cancelled, .. } => (*watch, *cancelled),
            Op { cancelled, .. } => (false, *cancelled),
        };
        let promoted = self.promoted(handle)?;
        match done.result {
            result if result == -libc::ECANCELED => {
                self.end_read(handle, done.op);
                self.arrange_reads(handle);
                let result = outcome(done.result);
                return (!watch).then_some(Event::Read { result, data: ReadData::None, more: false });
            }
            result if result > 0 => {
                if let Some(buffer) = buffer {
                    promoted.unread += buffer.len();
                    promoted.kernel_bytes.push_back(KernelBytes::Pooled(buffer));
                    promoted.drop_wake_ups();
                    let woke_at = promoted.connection.peer_woke_at();
                    self.spin.woken_at(woke_at);
                    self.answer_if_demoted(handle);
                }
                if ended && cancelled {
                    self.push_cancelled(done.op);
                } else if ended {
                    if let Some(Op { kind: OpKind::ReadStream { once, .. }, .. }) = self.op_mut(done.op) {
                        *once = false;
                    }
                    self.start_read_in_turn(done.op);
                }
                self.pause_watch(handle, done.op);
            }
            result => {
                let end = if result == 0 { KernelEnd::Finished } else { KernelEnd::Failed(-result) };
                promoted.connection.kernel_ended(end);
                if watch {
                    self.end_read(handle, done.op);
                }
            }
        }
        self.arrange_reads(handle);
        None
    }

    /// Before a close: settles the reads that the kernel has completed.
    pub(crate) fn settle_kernel_reads(&mut self, handle: u32) {
        let name = self.name_of(handle);
        for _ in 0..self.done.len() {
            let Some(done) = self.done.pop_front() else { return };
            let reads = self.op(done.op).is_some_and(|op| {
                op.handle == name && matches!(op.kind, OpKind::Read { .. } | OpKind::ReadStream { .. })
            });
            if reads {
                let _ = self.settle_read(handle, &done);
            } else {
                self.done.push_back(done);
            }
        }
    }

    /// The next completion of a promoted connection, if there is something to read.
    #[inline(always)]
    pub(crate) fn next_of_promoted(&mut self, name: Handle) -> Option<Completion> {
        let entry = self.handles.get_mut(name.index, name.generation)?;
        let promoted = entry.promoted.as_deref_mut()?;
        let count = match promoted.next() {
            Next::Nothing => return None,
            Next::Ring(count) => count,
            next => return self.deliver_promoted(name.index, next),
        };
        // The most frequent case, in one piece: bytes of the ring, for a streaming read
        // behind the channel's own.
        let reader = match self.ops.at(entry.reads.head) {
            Some(Op { kind: OpKind::ReadStream { watch: true, .. }, next, .. }) => *next,
            _ => NO_OP,
        };
        if entry.state == State::Open
            && let Some(Op { kind: OpKind::ReadStream { quota: None, .. }, cancelled: false, .. }) =
                self.ops.at(reader)
            && let Some(id) = self.ring_pool.take_free()
        {
            promoted.sleeps = 0;
            self.stats.ring_reads += 1;
            self.stats.completions += 1;
            let mut buffer = self.ring_pool.claim(id, 0, count.min(u32::MAX as usize) as u32);
            let read = promoted.connection.read_ring(&mut buffer).unwrap_or(0);
            buffer.truncate(read);
            let op = OpId { index: reader, generation: self.ops.generation(reader) };
            let event = Event::Read { result: Ok(read), data: ReadData::Buffer(buffer), more: true };
            return Some(Completion { handle: name, cookie: entry.cookie, op, event });
        }
        self.deliver_promoted(name.index, Next::Ring(count))
    }

    #[inline(never)]
    fn deliver_promoted(&mut self, handle: u32, mut next: Next) -> Option<Completion> {
        let reader = self.promoted_reader(handle)?;
        for _ in 0..4 {
            let promoted = self.promoted(handle)?;
            let (event, more) = match next {
                Next::Nothing => return None,
                Next::Ring(count) => self.deliver_from_ring(handle, reader, count)?,
                Next::Kernel => match promoted.connection.front(promoted.unread) {
                    Ok(Front::WakeUps(count)) => {
                        promoted.drop_bytes(count as usize);
                        next = promoted.next();
                        continue;
                    }
                    Ok(Front::Data(count)) => self.deliver_from_kernel(handle, reader, count as usize)?,
                    Ok(Front::Later) => return None,
                    Err(corrupt) => {
                        next = promoted.break_off(corrupt);
                        continue;
                    }
                },
                Next::End(end) => {
                    let result = match end {
                        KernelEnd::Finished => Ok(0),
                        KernelEnd::Failed(errno) => Err(std::io::Error::from_raw_os_error(errno)),
                    };
                    promoted.connection.end_was_reported();
                    let data = self.take_read_data(reader);
                    (Event::Read { result, data, more: false }, false)
                }
            };
            return self.complete_promoted(handle, reader, event, more);
        }
        None
    }

    fn complete_promoted(
        &mut self,
        handle: u32,
        reader: u32,
        mut event: Event,
        more: bool,
    ) -> Option<Completion> {
        let op = self.op_id(reader);
        if let Event::Read { data: ReadData::Buffer(buffer), .. } = &mut event {
            self.count_buffer(op, buffer);
        }
        let name = self.name_of(handle);
        let entry = self.handles.at_mut(handle)?;
        let (cookie, unwatched) = (entry.cookie, entry.reads.head == reader);
        if let Some(promoted) = entry.promoted.as_deref_mut() {
            promoted.sleeps = 0;
        }
        if !more {
            self.end_read(handle, op);
        } else if unwatched {
            self.arrange_reads(handle);
        }
        self.stats.completions += 1;
        Some(Completion { handle: name, cookie, op, event })
    }

    fn take_read_data(&mut self, reader: u32) -> ReadData {
        match self.ops.at_mut(reader) {
            Some(Op { kind: OpKind::Read { data, .. }, .. }) => std::mem::take(data),
            _ => ReadData::None,
        }
    }

    fn deliver_from_ring(&mut self, handle: u32, reader: u32, count: usize) -> Option<(Event, bool)> {
        let stream = match &self.ops.at(reader)?.kind {
            OpKind::ReadStream { .. } => true,
            OpKind::Read { data: ReadData::None, .. } => false,
            _ => {
                let mut data = self.take_read_data(reader);
                let connection = &mut self.promoted(handle)?.connection;
                let read = data.fill(count, &mut |room| connection.read_ring(room).unwrap_or(0));
                self.stats.ring_reads += 1;
                return Some((Event::Read { result: Ok(read), data, more: false }, false));
            }
        };
        let Some(id) = self.ring_pool.take_free() else {
            self.stats.pool_dry += 1;
            return None;
        };
        let mut buffer = self.ring_pool.claim(id, 0, count.min(u32::MAX as usize) as u32);
        let read = self.promoted(handle)?.connection.read_ring(&mut buffer).unwrap_or(0);
        buffer.truncate(read);
        self.stats.ring_reads += 1;
        Some((Event::Read { result: Ok(read), data: ReadData::Buffer(buffer), more: stream }, stream))
    }

    fn deliver_from_kernel(&mut self, handle: u32, reader: u32, count: usize) -> Option<(Event, bool)> {
        let (pooled, stream) = match &self.ops.at(reader)?.kind {
            OpKind::ReadStream { .. } => (true, true),
            OpKind::Read { data: ReadData::None, .. } => (true, false),
            _ => (false, false),
        };
        let ring_pool = std::rc::Rc::clone(&self.ring_pool);
        if !pooled {
            let mut data = self.take_read_data(reader);
            let promoted = self.promoted(handle)?;
            let mut left = count;
            let read = data.fill(count, &mut |room| {
                let Some(first) = promoted.kernel_bytes.front() else { return 0 };
                let first = first.bytes();
                let here = left.min(first.len()).min(room.len());
                room[..here].copy_from_slice(&first[..here]);
                promoted.drop_bytes(here);
                left -= here;
                here
            });
            return Some((Event::Read { result: Ok(read), data, more: false }, false));
        }
        let promoted = self.promoted(handle)?;
        let buffer = match promoted.kernel_bytes.pop_front()? {
            KernelBytes::Pooled(buffer) if buffer.len() <= count => {
                promoted.connection.kernel_delivered(buffer.len());
                promoted.unread -= buffer.len();
                buffer
            }
            // Its other bytes come after ring bytes.
            other => {
                promoted.kernel_bytes.push_front(other);
                let mut part = ring_pool.claim(ring_pool.take_free()?, 0, 0);
                let bytes = promoted.kernel_bytes.front()?.bytes();
                part.extend_from_slice(&bytes[..count.min(bytes.len())]);
                promoted.drop_bytes(part.len());
                part
            }
        };
        let read = buffer.len();
        Some((Event::Read { result: Ok(read), data: ReadData::Buffer(buffer), more: stream }, stream))
    }

    /// Whether a read of the hot connection would return something now.
    pub(crate) fn promoted_is_ready(&mut self, handle: u32) -> bool {
        let Some(reader) = self.promoted_reader(handle) else { return false };
        let pooled = !matches!(&self.ops.at(reader), Some(Op { kind: OpKind::Read { data, .. }, .. }) if !matches!(data, ReadData::None));
        if pooled && self.ring_pool.free_count() == 0 {
            return false;
        }
        match self.promoted(handle) {
            Some(promoted) if promoted.broken => true,
            Some(promoted) => promoted.connection.poll().unwrap_or(true),
            None => false,
        }
    }
}
