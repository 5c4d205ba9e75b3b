//! What is received on a promoted connection: bytes that come through shared memory, beside
//! the kernel connection whose reading goes on for bells, spilled bytes and the end.

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

/// Buffers that a connection may hold while nobody reads it; the kernel keeps the rest.
const STASH_MAX: usize = 8;

/// A promoted connection's part of its handle.
pub(crate) struct Lane {
    pub(crate) connection: Connection,
    /// The loop at the other end, by its place among those the channel knows.
    pub(crate) other_loop: usize,
    /// Keeps that place.
    _peer_loop: Arc<PeerLoop>,
    /// Those of both endpoints. The engine watches the own one.
    pub(crate) doorbells: Option<Doorbells>,
    /// Times that the own one woke this end since it was emptied, which is long before its page is full. (Each write is an edge,
    /// also one that finds bytes there.)
    rung: u8,
    /// What the kernel gave and nobody has got yet, in order.
    stash: VecDeque<Stashed>,
    /// Bytes of it.
    unread: usize,
    /// A bell is queued or on its way.
    pub(crate) bell_under_way: Option<WakeUp>,
    /// Looked at whenever the channel is awake.
    pub(crate) hot: bool,
    /// Sleeps of the channel since something came.
    pub(crate) sleeps: u8,
    /// Armed though it is hot, as bells are not heard.
    pub(crate) muted: bool,
    /// The other end broke the rules.
    pub(crate) broken: bool,
}

/// Bytes that wait for a reader.
enum Stashed {
    Pooled(Buffer),
    /// Nobody came for them: the pool's buffer serves others. From the offset on.
    Copied(Vec<u8>, usize),
}

impl Stashed {
    fn bytes(&self) -> &[u8] {
        match self {
            Stashed::Pooled(buffer) => buffer,
            Stashed::Copied(bytes, offset) => &bytes[*offset..],
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Stashed::Pooled(buffer) => buffer.advance(count),
            Stashed::Copied(_, offset) => *offset += count,
        }
    }

    fn leave_pool(&mut self) {
        if let Stashed::Pooled(buffer) = self {
            *self = Stashed::Copied(buffer.to_vec(), 0);
        }
    }
}

/// What a bell leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listening {
    /// Somebody waits for bytes, and the kernel connection is being read.
    Yes,
    /// Somebody waits for bytes, but the kernel connection cannot be read for now.
    Deaf,
    /// Nobody waits for bytes.
    No,
}

impl Lane {
    pub(crate) fn new(
        connection: Connection,
        other_loop: usize,
        peer_loop: Arc<PeerLoop>,
        doorbells: Option<Doorbells>,
    ) -> Lane {
        let mut lane = Lane {
            connection,
            other_loop,
            _peer_loop: peer_loop,
            doorbells,
            rung: 0,
            stash: VecDeque::new(),
            unread: 0,
            bell_under_way: None,
            hot: false,
            sleeps: 0,
            muted: false,
            broken: false,
        };
        lane.mute();
        let by = lane.wake_up();
        lane.connection.polled_by(0, by);
        lane
    }

    /// How this end is woken.
    pub(crate) fn wake_up(&self) -> WakeUp {
        if self.doorbells.is_some() { WakeUp::Doorbell } else { WakeUp::Tcp }
    }

    /// Asks to be woken. True: something is here already.
    pub(crate) fn arm(&mut self) -> bool {
        let by = self.wake_up();
        self.connection.arm(by).unwrap_or(true)
    }

    /// It takes nothing for now, whatever comes.
    pub(crate) fn mute(&mut self) {
        let by = self.wake_up();
        self.connection.mask_by(by);
    }

    /// Whether closing now has to reset the connection, as closing over unread bytes does
    /// on TCP.
    pub(crate) fn needs_reset(&mut self) -> bool {
        // Some came behind bytes that were handed out since.
        self.drop_bells();
        self.broken || self.unread > 0 || self.connection.has_unread()
    }

    /// Whether writes pass the ring by: the connection is over, or has an end in sight.
    pub(crate) fn sends_to_kernel(&self) -> bool {
        self.broken || self.connection.stays_with_kernel()
    }

    /// Drops bytes that came from the kernel behind all others; false if they are not bells.
    pub(crate) fn took_bells(&mut self, count: usize) -> bool {
        let bells = self.unread == 0
            && matches!(self.connection.front(count), Ok(Front::WakeUps(all)) if all == count as u64);
        if bells {
            self.connection.kernel_delivered(count);
        }
        bells
    }

    pub(crate) fn has_stash(&self) -> bool {
        !self.stash.is_empty()
    }

    /// The other end broke the rules: for this one the connection ends as by a reset.
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

    /// Drops the bells at the front of what the kernel gave.
    fn drop_bells(&mut self) {
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
        while let Some(first) = self.stash.front_mut() {
            let len = first.bytes().len();
            if len > left {
                first.advance(left);
                return;
            }
            left -= len;
            self.stash.pop_front();
        }
    }
}

impl Core {
    pub(crate) fn lane(&mut self, handle: u32) -> Option<&mut Lane> {
        self.handles.at_mut(handle)?.lane.as_deref_mut()
    }

    /// The first read that waits for bytes; the watch, which stands before it, does not, nor
    /// does a stream of which the program holds enough.
    fn lane_reader(&self, handle: u32) -> Option<u32> {
        let entry = self.handles.at(handle)?;
        if entry.state != State::Open {
            return None;
        }
        let head = entry.reads.head;
        let first = match self.ops.at(head)? {
            Op { kind: OpKind::ReadStream { watch: true, .. }, next, .. } => *next,
            _ => head,
        };
        // One that was cancelled only waits for its end to be handed out.
        let reader = self.ops.at(first)?;
        (!reader.cancelled && !reader.is_full()).then_some(first)
    }

    /// A read was queued or ended on a promoted connection: sees to it that the kernel's
    /// side is being read, under a read of the channel's own, and that the ring is looked at.
    pub(crate) fn tend_lane(&mut self, handle: u32) {
        let reader = self.lane_reader(handle);
        let Some(entry) = self.handles.at_mut(handle) else { return };
        let (head, state) = (entry.reads.head, entry.state);
        let Some(lane) = entry.lane.as_deref_mut() else { return };
        let enough = lane.connection.kernel_has_ended() || lane.stash.len() >= STASH_MAX;
        if !lane.hot && reader.is_some() {
            lane.hot = true;
            lane.sleeps = 0;
            lane.muted = false;
            lane.connection.disarm();
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

    /// Its doorbell woke the channel.
    pub(crate) fn is_woken(&mut self, handle: u32) {
        let Some(lane) = self.lane(handle) else { return };
        lane.rung = lane.rung.wrapping_add(1);
        if let Some(Doorbells { own, kind, .. }) = &lane.doorbells
            && (lane.rung == 0 || *kind == Kind::Queue || !sys::doorbell::may_stay_unread())
        {
            sys::doorbell::empty(own.as_fd(), *kind);
        }
        let woke_at = lane.connection.peer_woke_at();
        self.spin.woken_at(woke_at);
        self.answer_if_left(handle);
        self.tend_lane(handle);
    }

    /// What a bell on this connection would lead to.
    pub(crate) fn listening(&self, handle: u32) -> Listening {
        let watch = self.handles.at(handle).and_then(|entry| self.ops.at(entry.reads.head));
        match self.lane_reader(handle) {
            None => Listening::No,
            Some(_) if watch.is_some_and(|op| op.started) => Listening::Yes,
            Some(_) => Listening::Deaf,
        }
    }

    /// Nobody reads, and much is here already: the kernel keeps what comes next, and its
    /// back-pressure is the peer's; and others have the buffers.
    fn rest_watch(&mut self, handle: u32, watch: OpId) {
        if self.lane_reader(handle).is_some() {
            return;
        }
        let Some(lane) = self.lane(handle) else { return };
        if lane.stash.len() < STASH_MAX {
            return;
        }
        lane.stash.iter_mut().for_each(Stashed::leave_pool);
        if let Some(op) = self.op_mut(watch)
            && op.started
            && !std::mem::replace(&mut op.cancelled, true)
        {
            self.request(Request::Cancel(watch));
        }
    }

    /// What the kernel gave to a promoted connection.
    pub(crate) fn settle_lane(&mut self, handle: u32, done: &Done) -> Option<Event> {
        let ended = !done.has(Done::MORE);
        let buffer = self.filled(done);
        // Of reads, the kernel holds the watch only; others can but be cancelled.
        let (watch, cancelled) = match self.op(done.op)? {
            Op { kind: OpKind::ReadStream { watch, .. }, cancelled, .. } => (*watch, *cancelled),
            Op { cancelled, .. } => (false, *cancelled),
        };
        let lane = self.lane(handle)?;
        match done.result {
            result if result == -libc::ECANCELED => {
                self.end_read(handle, done.op);
                self.tend_lane(handle);
                let result = outcome(done.result);
                return (!watch).then_some(Event::Read { result, data: ReadData::None, more: false });
            }
            result if result > 0 => {
                if let Some(buffer) = buffer {
                    lane.unread += buffer.len();
                    lane.stash.push_back(Stashed::Pooled(buffer));
                    lane.drop_bells();
                    let woke_at = lane.connection.peer_woke_at();
                    self.spin.woken_at(woke_at);
                    self.answer_if_left(handle);
                }
                if ended && cancelled {
                    self.push_cancelled(done.op);
                } else if ended {
                    if let Some(Op { kind: OpKind::ReadStream { once, .. }, .. }) = self.op_mut(done.op) {
                        *once = false;
                    }
                    self.start_read_in_turn(done.op);
                }
                self.rest_watch(handle, done.op);
            }
            result => {
                let end = if result == 0 { KernelEnd::Finished } else { KernelEnd::Failed(-result) };
                lane.connection.kernel_ended(end);
                if watch {
                    self.end_read(handle, done.op);
                }
            }
        }
        self.tend_lane(handle);
        None
    }

    /// Takes in what the kernel gave already, before a close.
    pub(crate) fn settle_all_of_lane(&mut self, handle: u32) {
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

    /// The next completion of a promoted connection, if something for its reader is here.
    #[inline(always)]
    pub(crate) fn lane_next(&mut self, name: Handle) -> Option<Completion> {
        let entry = self.handles.get_mut(name.index, name.generation)?;
        let lane = entry.lane.as_deref_mut()?;
        let count = match lane.next() {
            Next::Nothing => return None,
            Next::Ring(count) => count,
            next => return self.lane_deliver(name.index, next),
        };
        // What nearly all of them are, in one piece: bytes of the ring, for a streaming read
        // behind the watch.
        let reader = match self.ops.at(entry.reads.head) {
            Some(Op { kind: OpKind::ReadStream { watch: true, .. }, next, .. }) => *next,
            _ => NO_OP,
        };
        if entry.state == State::Open
            && let Some(Op { kind: OpKind::ReadStream { quota: None, .. }, cancelled: false, .. }) =
                self.ops.at(reader)
            && let Some(id) = self.ring_pool.take_free()
        {
            lane.sleeps = 0;
            self.stats.ring_reads += 1;
            self.stats.completions += 1;
            let mut buffer = self.ring_pool.claim(id, 0, count.min(u32::MAX as usize) as u32);
            let read = lane.connection.read_ring(&mut buffer).unwrap_or(0);
            buffer.truncate(read);
            let op = OpId { index: reader, generation: self.ops.generation(reader) };
            let event = Event::Read { result: Ok(read), data: ReadData::Buffer(buffer), more: true };
            return Some(Completion { handle: name, cookie: entry.cookie, op, event });
        }
        self.lane_deliver(name.index, Next::Ring(count))
    }

    #[inline(never)]
    fn lane_deliver(&mut self, handle: u32, mut next: Next) -> Option<Completion> {
        let reader = self.lane_reader(handle)?;
        for _ in 0..4 {
            let lane = self.lane(handle)?;
            let (event, more) = match next {
                Next::Nothing => return None,
                Next::Ring(count) => self.deliver_from_ring(handle, reader, count)?,
                Next::Kernel => match lane.connection.front(lane.unread) {
                    Ok(Front::WakeUps(count)) => {
                        lane.drop_bytes(count as usize);
                        next = lane.next();
                        continue;
                    }
                    Ok(Front::Data(count)) => self.deliver_from_kernel(handle, reader, count as usize)?,
                    Ok(Front::Later) => return None,
                    Err(corrupt) => {
                        next = lane.break_off(corrupt);
                        continue;
                    }
                },
                Next::End(end) => {
                    let result = match end {
                        KernelEnd::Finished => Ok(0),
                        KernelEnd::Failed(errno) => Err(std::io::Error::from_raw_os_error(errno)),
                    };
                    lane.connection.end_was_reported();
                    let data = self.take_read_data(reader);
                    (Event::Read { result, data, more: false }, false)
                }
            };
            return self.complete_lane(handle, reader, event, more);
        }
        None
    }

    fn complete_lane(
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
        if let Some(lane) = entry.lane.as_deref_mut() {
            lane.sleeps = 0;
        }
        if !more {
            self.end_read(handle, op);
        } else if unwatched {
            self.tend_lane(handle);
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
                let connection = &mut self.lane(handle)?.connection;
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
        let read = self.lane(handle)?.connection.read_ring(&mut buffer).unwrap_or(0);
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
            let lane = self.lane(handle)?;
            let mut left = count;
            let read = data.fill(count, &mut |room| {
                let Some(first) = lane.stash.front() else { return 0 };
                let first = first.bytes();
                let here = left.min(first.len()).min(room.len());
                room[..here].copy_from_slice(&first[..here]);
                lane.drop_bytes(here);
                left -= here;
                here
            });
            return Some((Event::Read { result: Ok(read), data, more: false }, false));
        }
        let lane = self.lane(handle)?;
        let buffer = match lane.stash.pop_front()? {
            Stashed::Pooled(buffer) if buffer.len() <= count => {
                lane.connection.kernel_delivered(buffer.len());
                lane.unread -= buffer.len();
                buffer
            }
            // The rest of it belongs to what comes after ring bytes.
            other => {
                lane.stash.push_front(other);
                let mut part = ring_pool.claim(ring_pool.take_free()?, 0, 0);
                let bytes = lane.stash.front()?.bytes();
                part.extend_from_slice(&bytes[..count.min(bytes.len())]);
                lane.drop_bytes(part.len());
                part
            }
        };
        let read = buffer.len();
        Some((Event::Read { result: Ok(read), data: ReadData::Buffer(buffer), more: stream }, stream))
    }

    /// Whether a look at the ring of a hot connection would hand something out now.
    pub(crate) fn lane_has_news(&mut self, handle: u32) -> bool {
        let Some(reader) = self.lane_reader(handle) else { return false };
        let pooled = !matches!(&self.ops.at(reader), Some(Op { kind: OpKind::Read { data, .. }, .. }) if !matches!(data, ReadData::None));
        if pooled && self.ring_pool.free_count() == 0 {
            return false;
        }
        match self.lane(handle) {
            Some(lane) if lane.broken => true,
            Some(lane) => lane.connection.poll().unwrap_or(true),
            None => false,
        }
    }
}
