//! Everything that an engine may see and do of its channel.
//!
//! The channel's tables and queues, and the rules on them, are `Core`'s. An engine takes
//! requests, reads files and operations, and reports results, through [`View`] alone.

use std::os::fd::{AsFd, BorrowedFd};

use super::watch::Watch;
use super::{Done, Request};
use crate::buffer::Pool;
use crate::config::LatencyBound;
use crate::core::{Core, File, HandleEntry, Op, OpKind, WriteState, take_first};
use crate::id::{Handle, OpId};
use crate::lwsocket::LwFile;
use crate::op_list::NO_OP;
use crate::source::Shape;
use crate::write::{Destination, Fresh, NextWrites};

/// A channel as one of its engines sees it.
pub(crate) struct View<'c> {
    core: &'c mut Core,
    /// Whether requests are those for sockets of stacks.
    of_stacks: bool,
}

/// A handle's file as an engine sees it.
#[derive(Clone, Copy)]
pub(crate) struct FileView<'c> {
    entry: &'c HandleEntry,
}

impl<'c> FileView<'c> {
    pub(crate) fn shape(self) -> Shape {
        self.entry.shape
    }

    /// Its descriptor; `None` for a slot of a ring, and once it was closed or handed back.
    #[inline]
    pub(crate) fn descriptor(self) -> Option<BorrowedFd<'c>> {
        match &self.entry.file {
            File::Fd(fd) | File::Lw(LwFile::Private(fd)) => Some(fd.as_fd()),
            File::Lw(LwFile::Direct(_) | LwFile::Stack(_) | LwFile::Taken) | File::None => None,
        }
    }

    /// Its slot in the engine's own table; `None` for a descriptor, and once it was closed.
    #[inline]
    pub(crate) fn slot(self) -> Option<u32> {
        match &self.entry.file {
            File::Lw(LwFile::Direct(slot)) => Some(*slot),
            File::Fd(_) | File::Lw(LwFile::Private(_) | LwFile::Stack(_) | LwFile::Taken) | File::None => {
                None
            }
        }
    }

    /// Its index among the sockets of stacks; `None` for the kernel's files.
    #[inline]
    pub(crate) fn stack_socket(self) -> Option<u32> {
        match &self.entry.file {
            File::Lw(LwFile::Stack(socket)) => Some(*socket),
            _ => None,
        }
    }

    /// The engine's word for the file; 0 at first.
    #[inline]
    pub(crate) fn word(self) -> u32 {
        self.entry.engine_word
    }

    /// Whether a send found the socket buffer full: the next one has to wait for room.
    #[inline]
    pub(crate) fn is_write_blocked(self) -> bool {
        self.entry.write_blocked
    }

    /// Whether the engine keeps a send of its queue beyond a turn ([`View::hold_writes`]).
    #[inline]
    pub(crate) fn is_write_held(self) -> bool {
        self.entry.write_state == WriteState::Held
    }

    /// Operations, and held sends, that the engine has started and not finished.
    pub(crate) fn in_engine(self) -> u32 {
        self.entry.in_engine
    }
}

/// Requests.
impl<'c> View<'c> {
    pub(crate) fn of(core: &'c mut Core) -> View<'c> {
        View { core, of_stacks: false }
    }

    /// The next request, which is the engine's from here on.
    #[inline]
    pub(crate) fn next_request(&mut self) -> Option<Request> {
        take_first(if self.of_stacks { &mut self.core.stack_requests } else { &mut self.core.requests })
    }

    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        if self.of_stacks { !self.core.stack_requests.is_empty() } else { !self.core.requests.is_empty() }
    }

    #[inline]
    pub(crate) fn has_fresh(&self) -> bool {
        !self.core.fresh.is_empty()
    }

    /// Requests and quiet writes that were not taken yet.
    #[inline]
    pub(crate) fn requested(&self) -> usize {
        self.core.requests.len() + self.core.fresh.len()
    }

    /// Asks for something anew, behind all other requests.
    pub(crate) fn request_again(&mut self, request: Request) {
        self.core.request(request);
    }

    /// Requests operations that waited for a buffer or a slot that is free now. True if
    /// there were any. An engine calls it before it sleeps.
    pub(crate) fn resume(&mut self) -> bool {
        self.core.resume_paused()
    }

    /// Every request was tried: the free buffers are those that the pool and the stock show.
    pub(crate) fn all_tried(&mut self) {
        self.core.fed = 0;
    }
}

/// Files and operations.
impl View<'_> {
    /// The file of the handle at this index.
    #[inline]
    pub(crate) fn file(&self, index: u32) -> Option<FileView<'_>> {
        self.core.handles.at(index).map(|entry| FileView { entry })
    }

    /// The handles, by index.
    pub(crate) fn indices(&self) -> Vec<u32> {
        self.core.handles.indices()
    }

    /// The engine's word for the file; see [`FileView::word`].
    #[inline]
    pub(crate) fn word_mut(&mut self, index: u32) -> Option<&mut u32> {
        self.core.handles.at_mut(index).map(|entry| &mut entry.engine_word)
    }

    /// The name of the handle at this index, which no later handle there has.
    #[inline]
    pub(crate) fn name_of(&self, index: u32) -> Handle {
        self.core.name_of(index)
    }

    /// Whether the handle of this name still has its entry.
    #[inline]
    pub(crate) fn is_live(&self, handle: Handle) -> bool {
        self.core.handles.get(handle.index, handle.generation).is_some()
    }

    /// The next send need not wait for room any more.
    #[inline]
    pub(crate) fn unblock_writes(&mut self, index: u32) {
        if let Some(entry) = self.core.handles.at_mut(index) {
            entry.write_blocked = false;
        }
    }

    /// The started read at the head of the handle's reads.
    #[inline]
    pub(crate) fn started_read(&self, index: u32) -> Option<OpId> {
        let at = self.core.handles.at(index)?.reads.head;
        self.core.ops.at(at).filter(|read| read.started).map(|_| self.core.op_id(at))
    }

    pub(crate) fn has_accepts(&self, index: u32) -> bool {
        !self.core.accepts_of(index).is_empty()
    }

    #[inline]
    pub(crate) fn op(&self, op: OpId) -> Option<&Op> {
        self.core.op(op)
    }

    /// The polls that the engine has.
    pub(crate) fn polls(&self) -> Vec<OpId> {
        self.core.polls()
    }

    /// Whether a requested operation was cancelled, or its handle closed. An accept is not started
    /// then: it could accept a connection that another channel would get.
    pub(crate) fn is_ended(&self, op: OpId) -> bool {
        self.core.op(op).is_none_or(|op| op.cancelled || self.core.open(op.handle).is_err())
    }

    /// The operation at this index, which the engine has started.
    #[inline]
    pub(crate) fn op_id(&self, index: u32) -> OpId {
        self.core.op_id(index)
    }

    /// An operation, and its file.
    #[inline]
    pub(crate) fn task(&mut self, op: OpId) -> Option<(FileView<'_>, &mut OpKind)> {
        let Core { ops, handles, .. } = &mut *self.core;
        let op = ops.get_mut(op.index, op.generation)?;
        let entry = handles.at(op.handle.index)?;
        Some((FileView { entry }, &mut op.kind))
    }

    /// The operation behind this one in a list of the engine's own. An operation that it has
    /// started, and that is in no queue of the handle, may be in one.
    #[inline]
    pub(crate) fn next_of(&self, op: u32) -> Option<u32> {
        self.core.ops.at(op).map(|op| op.next).filter(|&next| next != NO_OP)
    }

    pub(crate) fn set_next(&mut self, op: u32, next: Option<u32>) {
        if let Some(op) = self.core.ops.at_mut(op) {
            op.next = next.unwrap_or(NO_OP);
        }
    }

    /// The file of a handle that is being closed, for the engine to end. The handle is free
    /// once nothing of it is in the engine.
    pub(crate) fn take_file(&mut self, index: u32) -> File {
        let file = self.core.take_file(index);
        if let File::Lw(file) = &file {
            self.core.lwsockets.closed_one(file.is_of_stack());
        }
        self.core.release_if_ended(index);
        file
    }

    /// Lightweight sockets are slots of the engine's own table, or else descriptors.
    pub(crate) fn use_slots(&mut self, slots: bool) {
        self.core.direct_slots = slots;
    }

    /// How many lightweight sockets there may be.
    pub(crate) fn lwsockets_max(&self) -> u32 {
        self.core.config.lwsockets_max
    }

    /// The engine has room for fewer of the kernel's.
    pub(crate) fn limit_kernel_lwsockets(&mut self, most: u32) {
        self.core.kernel_lwsockets_max = self.core.kernel_lwsockets_max.min(most);
    }

    /// Lightweight sockets that fit beside those that exist and those that are on their way
    /// to the user; while none are on their way, one is let through for the channel's own
    /// bound to catch.
    pub(crate) fn room_for_lwsockets(&self, of_stack: bool) -> usize {
        let room = self.lwsockets_left(of_stack).saturating_sub(self.results());
        if self.results() == 0 { room.max(1) } else { room }
    }

    /// Lightweight sockets that may still be made.
    pub(crate) fn lwsockets_left(&self, of_stack: bool) -> usize {
        self.core.lwsockets_left(of_stack) as usize
    }

    /// Whether the next accept of lightweight sockets may be the last that fits.
    pub(crate) fn lwsockets_nearly_full(&self) -> bool {
        self.core.lwsockets_nearly_full()
    }
}

/// Writes.
impl View<'_> {
    /// The next quiet write that is still wanted, with whether its outcome must be acted
    /// on without sleeping first. It goes before all requests; [`Self::report_fresh`]
    /// ends it.
    #[inline]
    pub(crate) fn next_fresh(&mut self) -> Option<(Fresh, bool)> {
        while let Some(fresh) = take_first(&mut self.core.fresh) {
            match self.core.fresh_is_urgent(fresh.handle) {
                Some(urgent) => return Some((fresh, urgent)),
                None => self.core.forget_wake_up(fresh.handle, fresh.wake_up),
            }
        }
        None
    }

    /// Reports the result of a quiet write: bytes, or a negative errno. `blocked`: the
    /// socket accepted less than it was given for want of room.
    #[inline]
    pub(crate) fn report_fresh(&mut self, fresh: Fresh, result: i32, blocked: bool) {
        if fresh.wake_up {
            self.core.settle_wake_up(fresh.handle, result > 0);
        } else {
            self.core.settle_fresh(fresh.handle, fresh.data, result, blocked);
        }
    }

    /// At a [`Request::Writes`]: what to send of the handle's queue, which stays as it is
    /// until [`Self::report_write`].
    #[inline]
    pub(crate) fn next_writes(&mut self, index: u32) -> NextWrites {
        self.core.next_writes(index)
    }

    /// Calls `f` with the parts of the next send, and returns their bytes.
    #[inline]
    pub(crate) fn for_each_queued<'a>(&'a self, index: u32, f: &mut dyn FnMut(&'a [u8])) -> usize {
        self.core.for_each_queued(index, f)
    }

    /// Where the next send goes: to which address, at which offset of a file.
    #[inline]
    pub(crate) fn next_write_target(&self, index: u32) -> (&Destination, Option<u64>) {
        self.core.next_write_target(index)
    }

    /// The queue waits for room; its data may move, as no send of it is under way.
    pub(crate) fn block_writes(&mut self, index: u32) {
        self.core.block_writes(index);
    }

    /// The engine keeps the send beyond this turn.
    pub(crate) fn hold_writes(&mut self, index: u32) {
        self.core.hold_writes(index);
    }

    /// Reports the result of a send; as for [`Self::report_fresh`]. The accepted data is
    /// the program's again with this call: an engine that needs it for longer copies it
    /// (ADR 14).
    #[inline]
    pub(crate) fn report_write(&mut self, index: u32, result: i32, blocked: bool) {
        self.core.settle_writes(index, result, blocked);
    }
}

/// Results.
impl View<'_> {
    /// Reports a result of an operation; one without [`Done::MORE`] is its last.
    #[inline]
    pub(crate) fn push_done(&mut self, done: Done) {
        self.core.push_done(done);
    }

    /// Buffers for what is read: the engine takes free ones, and reports them filled or gives
    /// them back.
    #[inline]
    pub(crate) fn read_pool(&self) -> &Pool {
        &self.core.read_pool
    }

    /// Buffers of the read pool that the engine keeps ready for reads to come. Reads that
    /// found the pool dry go on as far as these reach.
    #[inline]
    pub(crate) fn stocked(&self) -> usize {
        self.core.buffers_stocked
    }

    /// Takes a free buffer of the read pool into the engine's stock.
    #[inline]
    pub(crate) fn stock_buffer(&mut self) -> Option<u16> {
        let buffer = self.core.read_pool.take_free()?;
        self.core.buffers_stocked += 1;
        Some(buffer)
    }

    /// A read took a buffer of the stock.
    #[inline]
    pub(crate) fn unstock(&mut self) {
        self.core.buffers_stocked -= 1;
    }

    /// Whether reads wait for buffers, which writes may hold.
    pub(crate) fn has_waiting_reads(&self) -> bool {
        !self.core.starved.is_empty() || self.core.full_streams > 0
    }

    /// Results that were reported and not delivered.
    #[inline]
    pub(crate) fn results(&self) -> usize {
        self.core.done.len()
    }

    /// Whether there is something to deliver: a turn must not sleep then.
    #[inline]
    pub(crate) fn has_results(&self) -> bool {
        // Requests to stacks are for the engine beside.
        self.core.can_hand_out() || !self.of_stacks && !self.core.stack_requests.is_empty()
    }

    /// A waker was used.
    pub(crate) fn wake(&mut self) {
        self.core.woken = true;
    }

    pub(crate) fn was_woken(&self) -> bool {
        self.core.woken
    }

    /// A watched descriptor has something to read.
    pub(crate) fn raise(&mut self, watch: Watch) {
        self.core.readable.raise(watch);
    }

    /// The handle's own doorbell woke the channel.
    pub(crate) fn woken_by_doorbell(&mut self, handle: Handle) {
        if self.is_live(handle) {
            self.core.doorbell_woke(handle.index);
        }
    }

    /// Whether the engine may watch a doorbell of the handle at this index.
    pub(crate) fn has_doorbell(&self, index: u32) -> bool {
        let promoted = self.core.handles.at(index).and_then(|entry| entry.promoted.as_deref());
        promoted.is_some_and(|promoted| promoted.doorbells.is_some())
    }

    /// The handle's own doorbell, while the handle is open.
    pub(crate) fn own_doorbell(&self, handle: Handle) -> Option<BorrowedFd<'_>> {
        self.core.open(handle).ok()?;
        let promoted = self.core.handles.at(handle.index)?.promoted.as_deref()?;
        promoted.doorbells.as_ref().map(|doorbells| doorbells.own.as_fd())
    }

    /// Drops the results that were not delivered, with the connections in them.
    pub(crate) fn drop_results(&mut self) {
        while let Some(done) = self.core.done.pop_front() {
            self.core.discard_accepted(&done);
            self.core.discard(&done);
        }
    }

    /// Counts system calls on the data path.
    #[inline]
    pub(crate) fn count_calls(&mut self, calls: u64) {
        self.core.stats.system_calls += calls;
    }

    /// None where there are stacks: packets that wait for a batch would delay handshakes and
    /// acknowledgements.
    pub(crate) fn latency_bound(&self) -> Option<LatencyBound> {
        self.core.config.latency_bound.filter(|_| self.core.stack_pool.is_none())
    }
}

/// For the engine of stacks.
#[cfg(feature = "tcp")]
impl View<'_> {
    /// The same channel, with the requests for sockets of stacks.
    pub(crate) fn of_stacks(&mut self) -> View<'_> {
        View { core: self.core, of_stacks: true }
    }

    /// The buffers of stacks, made for the first of them.
    pub(crate) fn make_stack_pool(&mut self) -> std::io::Result<std::rc::Rc<Pool>> {
        let config = &self.core.config;
        let pool = Pool::new(config.read_buffers, config.buffer_size)?;
        Ok(std::rc::Rc::clone(self.core.stack_pool.insert(pool)))
    }

    /// A socket of a stack, as a file; it counts as a lightweight socket.
    pub(crate) fn file_of_stack(&mut self, socket: u32, shape: Shape) -> File {
        let socket = crate::lwsocket::LwSocket::new(LwFile::Stack(socket), shape, &self.core.lwsockets);
        File::Lw(socket.into_file())
    }

    /// Whether requests for sockets of stacks are queued.
    pub(crate) fn has_stack_requests(&self) -> bool {
        !self.core.stack_requests.is_empty()
    }

    /// Counts packets of stacks.
    pub(crate) fn count_packets(&mut self, received: u64, sent: u64, unowned: u64) {
        let stats = &mut self.core.stats;
        stats.packets_received += received;
        stats.packets_sent += sent;
        stats.segments_unowned += unowned;
    }

    pub(crate) fn count_foreign(&mut self, foreign: packet::group::Foreign) {
        let stats = &mut self.core.stats;
        stats.foreign_sent += foreign.sent;
        stats.foreign_received += foreign.received;
        stats.foreign_dropped += foreign.dropped;
    }

    /// A read found no free buffer, and waits.
    pub(crate) fn count_dry_pool(&mut self) {
        self.core.stats.pool_dry += 1;
    }

    /// Whether the watched descriptor has something to read since it was last asked.
    pub(crate) fn take_raised(&mut self, watch: Watch) -> bool {
        self.core.readable.take(watch)
    }
}
