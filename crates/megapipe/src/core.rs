//! The tables and queues of a channel, and the rules that hold on every engine.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::accept::AcceptState;
use crate::buffer::{Buffer, Pool, ReadData, WriteData};
use crate::closing::CloseDeadlines;
use crate::completion::{Completion, Event};
use crate::config::{Config, Promotion};
use crate::engine::watch::Readable;
use crate::engine::{Done, Request};
use crate::error::{CreateError, StaleHandle, SubmitError};
use crate::id::{Handle, OpId};
use crate::lwsocket::{LwFile, LwOwner};
use crate::now::Now;
use crate::op_list::{NO_OP, OpList};
use crate::promoted::Promoted;
use crate::quota::Quota;
use crate::readiness::Poll;
use crate::slab::Slab;
use crate::source::Shape;
use crate::spin::Spinner;
use crate::stats::Stats;
use crate::steering::Partitioned;
use crate::timer::{Due, Timers};
use crate::write::{Destination, Fresh};

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) handles: Slab<HandleEntry>,
    pub(crate) ops: Slab<Op>,
    pub(crate) requests: VecDeque<Request>,
    /// Those for sockets of stacks.
    pub(crate) stack_requests: VecDeque<Request>,
    /// Quiet writes that found their handle's queue empty: they go to the engine as they
    /// are, before the requests, and become operations only if the kernel does not take
    /// all of them at once.
    pub(crate) fresh: VecDeque<Fresh>,
    pub(crate) done: VecDeque<Done>,
    /// Handles whose write queue has room again; see [`Room`].
    pub(crate) writable: VecDeque<Handle>,
    pub(crate) read_pool: Rc<Pool>,
    pub(crate) write_pool: Rc<Pool>,
    pub(crate) lwsockets: Rc<LwOwner>,
    /// Lightweight sockets are slots of a ring's file table, not private descriptors.
    pub(crate) direct_slots: bool,
    /// As many of them may be the kernel's: `lwsockets_max`, or what RLIMIT_NOFILE leaves of it.
    pub(crate) kernel_lwsockets_max: u32,
    /// Buffers of the read pool that the engine has ready for the kernel.
    pub(crate) buffers_stocked: usize,
    /// Reads that found the pool dry, oldest first.
    pub(crate) starved: VecDeque<OpId>,
    /// Starved reads that were started since the engine last tried what was requested: as
    /// many of the buffers are theirs.
    pub(crate) fed: usize,
    /// A stream had a quota: its buffers are counted.
    pub(crate) has_quotas: bool,
    /// Streams that read no more until the program drops a buffer of theirs.
    pub(crate) full_streams: u32,
    /// This channel's partitioned listeners; it publishes to their steering when it
    /// waits.
    pub(crate) partitioned: Vec<Partitioned>,
    /// Accepts that wait for a free slot or descriptor.
    pub(crate) paused_accepts: Vec<OpId>,
    /// When paused accepts that wait for a descriptor are tried again: descriptors may
    /// be closed where the channel does not see it.
    pub(crate) retry_accepts_at: Option<Instant>,
    pub(crate) timers: Timers,
    pub(crate) timers_live: usize,
    pub(crate) closes: CloseDeadlines,
    /// Buffers for what is read from rings.
    pub(crate) ring_pool: Rc<Pool>,
    /// Buffers for what is read from stacks, once one is attached. The kernel engine may have
    /// lent all of the read pool's.
    pub(crate) stack_pool: Option<Rc<Pool>>,
    /// `HandleEntry::offer_in` of a new handle.
    pub(crate) offer_after: u8,
    /// A monitor was found: there may be rings, or grants.
    pub(crate) found_monitor: bool,
    /// Connections to be offered.
    pub(crate) to_offer: Vec<Handle>,
    /// Promoted connections that became hot since the rings were last polled.
    pub(crate) heated: Vec<Handle>,
    /// Queued wake-ups of peers.
    pub(crate) wake_ups: u32,
    /// Promoted connections whose peers the next turn wakes by their doorbells.
    pub(crate) doorbells: VecDeque<Handle>,
    /// When something is to be sent to the monitor, without another event.
    pub(crate) promotion_due: Option<Instant>,
    /// Watched descriptors that have something to read.
    pub(crate) readable: Readable,
    /// A waker was used since the last wake-up was handed out.
    pub(crate) woken: bool,
    pub(crate) spin: Spinner,
    pub(crate) stats: Stats,
}

/// What each read and write needs is close together, up to the head of `writes`: the entry of a
/// connection that was quiet is not in the cache, and each line of it is another wait.
#[repr(C)]
pub(crate) struct HandleEntry {
    pub(crate) file: File,
    pub(crate) cookie: u64,
    /// The state of a promoted connection.
    pub(crate) promoted: Option<Box<Promoted>>,
    /// Operations the engine has started and not finished.
    pub(crate) in_engine: u32,
    pub(crate) shape: Shape,
    pub(crate) state: State,
    pub(crate) write_state: WriteState,
    /// A send found the socket buffer full: the next one has to wait for room.
    pub(crate) write_blocked: bool,
    /// Its reads wait while the connection is being promoted.
    pub(crate) being_promoted: bool,
    /// Reads until the connection is offered for promotion; 0: it is not, or was.
    pub(crate) offer_in: u8,
    /// Set by a full write queue's refusal.
    pub(crate) room: Room,
    /// Memory that a C caller lent to queued writes is copied as soon as the engine
    /// releases it.
    pub(crate) takes_back: bool,
    /// Of a listener, its accepts.
    pub(crate) reads: OpList,
    pub(crate) writes: OpList,
    /// The engine's word for the file; 0 at first.
    pub(crate) engine_word: u32,
}

impl HandleEntry {
    pub(crate) fn is_of_stack(&self) -> bool {
        matches!(&self.file, File::Lw(file) if file.is_of_stack())
    }
}

#[derive(Debug)]
pub(crate) enum File {
    Fd(OwnedFd),
    Lw(LwFile),
    /// Closed or handed back; operations may still have to end.
    None,
}

impl File {
    #[inline]
    pub(crate) fn is_of_stack(&self) -> bool {
        matches!(self, File::Lw(LwFile::Stack(_)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// Closed by the user; queued writes still go out.
    Draining,
    /// Waiting for the engine's operations to end; then the entry is free.
    Closing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteState {
    /// Nothing queued.
    Idle,
    /// A `Request::Writes` is queued.
    Requested,
    /// One fresh send is on its way, in this or the coming batch; see [`Core::fresh`].
    Fresh,
    /// Part of the batch that is being submitted.
    InEngine,
    /// In the kernel beyond this turn, waiting for room in the socket buffer: the queued
    /// data must stay where it is.
    Held,
}

/// A full write queue's refusal, and the completion that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// No write was refused since the last one that was queued.
    Unasked,
    /// A write was refused: a completion is due when half of the queue is free.
    Asked,
    /// In [`Core::writable`].
    Due,
}

/// What a stream's reads need is close together, as of [`HandleEntry`].
#[repr(C)]
pub(crate) struct Op {
    /// Its handle; [`Handle::NONE`] for a timer or a poll.
    pub(crate) handle: Handle,
    pub(crate) next: u32,
    /// The engine has it: one more [`Done`] without `MORE` will come.
    pub(crate) started: bool,
    /// The user cancelled it; it is not started again.
    pub(crate) cancelled: bool,
    /// The channel cancelled it, to start it again.
    pub(crate) paused: bool,
    /// Bytes of a write that the kernel has accepted.
    pub(crate) written: usize,
    pub(crate) kind: OpKind,
}

impl Op {
    pub(crate) fn new(handle: Handle, kind: OpKind) -> Op {
        Op { handle, next: NO_OP, started: false, cancelled: false, paused: false, written: 0, kind }
    }
}

#[repr(u8)]
pub(crate) enum OpKind {
    Accept(AcceptState),
    Connect(Box<socket2::SockAddr>),
    /// One read, into the caller's memory, or into the pool's if `data` is `None`.
    Read {
        data: ReadData,
        offset: Option<u64>,
    },
    /// Reads into pool buffers until end of file. `once`, one buffer a start, after the
    /// pool ran dry: each starved reader gets one before any gets a second.
    ReadStream {
        /// The channel's own read of a promoted connection's kernel side; never surfaces.
        watch: bool,
        once: bool,
        /// How many buffers of it the program may hold. `once` is always set then.
        quota: Option<Quota>,
    },
    Write {
        quiet: bool,
        data: WriteData,
        to: Destination,
        offset: Option<u64>,
    },
    /// A shutdown that includes sending, in its turn behind the queued writes.
    Disconnect(Shutdown),
    /// A shutdown at once.
    Shutdown(Shutdown),
    Timer {
        cookie: u64,
        due: Due,
    },
    Poll(Poll),
}

impl Core {
    pub(crate) fn new(config: &Config) -> Result<Core, CreateError> {
        let pool = |count, what| {
            Pool::new(count, config.buffer_size).map_err(|cause| CreateError::Resources { what, cause })
        };
        Ok(Core {
            handles: Slab::new(config.handles_max),
            ops: Slab::new(config.operations_max),
            requests: VecDeque::with_capacity(config.batch_threshold as usize * 2),
            stack_requests: VecDeque::new(),
            fresh: VecDeque::with_capacity(config.batch_threshold as usize),
            done: VecDeque::with_capacity(1024),
            writable: VecDeque::new(),
            read_pool: pool(config.read_buffers, "memory for read buffers")?,
            write_pool: pool(config.write_buffers, "memory for write buffers")?,
            lwsockets: LwOwner::new(),
            direct_slots: false,
            kernel_lwsockets_max: config.lwsockets_max,
            buffers_stocked: 0,
            starved: VecDeque::new(),
            fed: 0,
            has_quotas: false,
            full_streams: 0,
            partitioned: Vec::new(),
            paused_accepts: Vec::new(),
            retry_accepts_at: None,
            timers: Timers::default(),
            timers_live: 0,
            closes: VecDeque::new(),
            ring_pool: pool(config.ring_buffers(), "memory for buffers of promoted connections")?,
            stack_pool: None,
            offer_after: config.offer_after(),
            found_monitor: false,
            to_offer: Vec::new(),
            heated: Vec::new(),
            wake_ups: 0,
            doorbells: VecDeque::new(),
            promotion_due: None,
            readable: Readable::default(),
            woken: false,
            spin: Spinner::new(config.spin),
            stats: Stats::default(),
            config: config.clone(),
        })
    }

    /// Queues a request for the engine that owns the handle's file.
    #[inline]
    pub(crate) fn request(&mut self, request: Request) {
        if self.stack_pool.is_some() && self.is_for_stack(request) {
            self.stack_requests.push_back(request);
        } else {
            self.requests.push_back(request);
        }
    }

    fn is_for_stack(&self, request: Request) -> bool {
        let handle = match request {
            Request::Start(op) | Request::Cancel(op) => self.ops.at(op.index).map(|op| op.handle.index),
            Request::Writes(handle)
            | Request::CancelWrites(handle)
            | Request::Close(handle)
            | Request::Detach(handle) => Some(handle),
        };
        handle.is_some_and(|handle| self.is_of_stack(handle))
    }

    /// Requests of either kind that no engine has taken, and doorbells.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.requests.len() + self.stack_requests.len() + self.fresh.len() + self.doorbells.len()
    }

    /// Whether there is something to deliver, or may be: a promoted connection that is
    /// read again may have it in its ring.
    #[inline]
    pub(crate) fn can_hand_out(&self) -> bool {
        !self.done.is_empty() || self.woken || !self.writable.is_empty() || !self.heated.is_empty()
    }

    /// Whether the handle's file is a stack's.
    pub(crate) fn is_of_stack(&self, handle: u32) -> bool {
        self.handles.at(handle).is_some_and(|entry| entry.file.is_of_stack())
    }

    /// The index of an open handle.
    #[inline]
    pub(crate) fn open(&self, handle: Handle) -> Result<u32, StaleHandle> {
        match self.handles.get(handle.index, handle.generation) {
            Some(entry) if entry.state == State::Open => Ok(handle.index),
            _ => Err(StaleHandle),
        }
    }

    #[inline]
    pub(crate) fn open_entry(&mut self, handle: Handle) -> Result<&mut HandleEntry, StaleHandle> {
        match self.handles.get_mut(handle.index, handle.generation) {
            Some(entry) if entry.state == State::Open => Ok(entry),
            _ => Err(StaleHandle),
        }
    }

    pub(crate) fn name_of(&self, index: u32) -> Handle {
        Handle { index, generation: self.handles.generation(index) }
    }

    pub(crate) fn op_id(&self, index: u32) -> OpId {
        OpId { index, generation: self.ops.generation(index) }
    }

    #[inline]
    pub(crate) fn op(&self, op: OpId) -> Option<&Op> {
        self.ops.get(op.index, op.generation)
    }

    #[inline]
    pub(crate) fn op_mut(&mut self, op: OpId) -> Option<&mut Op> {
        self.ops.get_mut(op.index, op.generation)
    }

    /// Adds a handle for a file; gives the file back if the table is full.
    pub(crate) fn add_handle(&mut self, file: File, shape: Shape, cookie: u64) -> Result<Handle, File> {
        let entry = HandleEntry {
            file,
            shape,
            state: State::Open,
            write_state: WriteState::Idle,
            write_blocked: false,
            room: Room::Unasked,
            takes_back: false,
            cookie,
            in_engine: 0,
            reads: OpList::EMPTY,
            writes: OpList::EMPTY,
            engine_word: 0,
            offer_in: if shape == (Shape::Stream { tcp: true }) { self.offer_after } else { 0 },
            being_promoted: false,
            promoted: None,
        };
        match self.handles.insert(entry) {
            Ok((index, generation)) => Ok(Handle { index, generation }),
            Err(entry) => Err(entry.file),
        }
    }

    /// Adds an operation; gives its kind, data included, back if the table is full.
    #[inline]
    pub(crate) fn add_op(&mut self, handle: u32, kind: OpKind) -> Result<OpId, (SubmitError, OpKind)> {
        self.insert_op(self.name_of(handle), kind)
    }

    /// Adds an operation of no handle.
    pub(crate) fn add_own_op(&mut self, kind: OpKind) -> Result<OpId, SubmitError> {
        self.insert_op(Handle::NONE, kind).map_err(|(reason, _)| reason)
    }

    #[inline]
    fn insert_op(&mut self, handle: Handle, kind: OpKind) -> Result<OpId, (SubmitError, OpKind)> {
        match self.ops.insert(Op::new(handle, kind)) {
            Ok((index, generation)) => Ok(OpId { index, generation }),
            Err(op) => Err((SubmitError::OperationsFull, op.kind)),
        }
    }

    /// Adds an operation that stands in no queue, and requests its start.
    pub(crate) fn add_and_start(&mut self, handle: u32, kind: OpKind) -> Result<OpId, SubmitError> {
        let op = self.add_op(handle, kind).map_err(|(reason, _)| reason)?;
        self.request_start(op);
        Ok(op)
    }

    /// Requests the start of the operation.
    #[inline]
    pub(crate) fn request_start(&mut self, op: OpId) {
        let Some(entry) = self.ops.get_mut(op.index, op.generation) else {
            return;
        };
        entry.started = true;
        if let Some(handle) = self.handles.at_mut(entry.handle.index) {
            handle.in_engine += 1;
        }
        self.request(Request::Start(op));
    }

    /// The engine reports one result. Results of closed handles end here.
    #[inline]
    pub(crate) fn push_done(&mut self, done: Done) {
        if done.has(Done::MORE) {
            self.done.push_back(done);
        } else {
            self.push_last_done(done);
        }
    }

    fn push_last_done(&mut self, done: Done) {
        let Some(op) = self.ops.get_mut(done.op.index, done.op.generation) else {
            self.discard(&done);
            return;
        };
        let handle = op.handle.index;
        op.started = false;
        let Some(entry) = self.handles.at_mut(handle) else {
            if op.handle == Handle::NONE {
                self.done.push_back(done);
            }
            return;
        };
        entry.in_engine -= 1;
        if entry.state == State::Open {
            self.done.push_back(done);
            return;
        }
        // A draining or closing handle delivers nothing: discard it.
        self.discard_accepted(&done);
        self.discard(&done);
        self.end_of_closed(done.op, handle);
    }

    /// Ends an operation whose cancel came after the engine had stopped it for reasons of
    /// its own. (A second such end of one operation is discarded.)
    pub(crate) fn push_cancelled(&mut self, op: OpId) {
        self.done.push_back(Done::plain(op, -libc::ECANCELED));
    }

    /// Releases what a result carries, for one that is not delivered.
    pub(crate) fn discard(&mut self, done: &Done) {
        if done.has(Done::BUFFER) {
            self.pool_of(done).put_free(done.buffer);
        }
    }

    /// The pool of a result's buffer.
    #[inline]
    fn pool_of(&self, done: &Done) -> &Rc<Pool> {
        match &self.stack_pool {
            Some(pool) if done.has(Done::STACK) => pool,
            _ => &self.read_pool,
        }
    }

    /// Turns a result into a completion; `None` if it leads to none.
    #[inline]
    pub(crate) fn settle(&mut self, done: Done) -> Option<Completion> {
        match self.settle_stream(&done) {
            Some(completion) => Some(completion),
            None => self.settle_any(done),
        }
    }

    /// The most frequent result by far, with as few steps as it takes: bytes of a stream
    /// that goes on.
    #[inline]
    fn settle_stream(&mut self, done: &Done) -> Option<Completion> {
        if done.flags & (Done::MORE | Done::BUFFER) != Done::MORE | Done::BUFFER || done.result <= 0 {
            return None;
        }
        let op = self.ops.get(done.op.index, done.op.generation)?;
        let handle = op.handle;
        let entry = self.handles.get(handle.index, handle.generation)?;
        if entry.state != State::Open
            || !entry.shape.is_stream()
            || entry.promoted.is_some()
            || !matches!(op.kind, OpKind::ReadStream { quota: None, .. })
        {
            return None;
        }
        let cookie = entry.cookie;
        self.count_towards_offer(handle);
        let buffer = self.pool_of(done).claim(done.buffer, 0, done.result as u32);
        self.stats.completions += 1;
        let event =
            Event::Read { result: Ok(done.result as usize), data: ReadData::Buffer(buffer), more: true };
        Some(Completion { handle, cookie, op: done.op, event })
    }

    fn settle_any(&mut self, done: Done) -> Option<Completion> {
        let Some(op) = self.ops.get_mut(done.op.index, done.op.generation) else {
            self.discard(&done);
            return None;
        };
        let name = op.handle;
        let started = op.started;
        let cookie = match self.handles.get(name.index, name.generation) {
            Some(entry) if entry.state == State::Open => entry.cookie,
            _ if name == Handle::NONE => return self.settle_poll(&done),
            // Closed after the result came in.
            _ => {
                self.discard_accepted(&done);
                self.discard(&done);
                if matches!(self.op(done.op), Some(Op { kind: OpKind::Disconnect(_), .. })) {
                    // Writes behind it, and the close itself, wait for its end.
                    self.settle_disconnect(done.op, name.index);
                } else if !started {
                    if self.handles.get(name.index, name.generation).is_some() {
                        self.unlink(name.index, done.op.index, |entry| &mut entry.reads);
                    }
                    self.remove_read(done.op.index);
                }
                return None;
            }
        };
        let handle = name.index;
        let event = match self.op(done.op)?.kind {
            OpKind::Read { .. } | OpKind::ReadStream { .. } => self.settle_read(handle, &done)?,
            OpKind::Accept(_) => self.settle_accept(handle, &done)?,
            OpKind::Write { .. } => self.settle_write(&done)?,
            OpKind::Connect(_) => {
                self.ops.remove(done.op.index);
                if done.result >= 0 && self.config.promotion == Promotion::Eager {
                    self.to_offer.push(name);
                }
                Event::Connect(outcome(done.result).map(drop))
            }
            OpKind::Shutdown(_) => {
                self.ops.remove(done.op.index);
                Event::Disconnect(outcome(done.result).map(drop))
            }
            OpKind::Disconnect(_) => {
                self.settle_disconnect(done.op, handle);
                Event::Disconnect(outcome(done.result).map(drop))
            }
            OpKind::Timer { .. } | OpKind::Poll(_) => return None,
        };
        self.stats.completions += 1;
        Some(Completion { handle: name, cookie, op: done.op, event })
    }

    /// Starts operations that waited for a free buffer or slot and can go on; true if it
    /// requested any. An engine that frees buffers or slots within a turn calls it before
    /// it sleeps.
    #[inline]
    pub(crate) fn resume_paused(&mut self) -> bool {
        let before = self.queued();
        self.take_returned();
        if !self.starved.is_empty() || !self.paused_accepts.is_empty() {
            self.resume_all_paused();
        }
        self.queued() > before
    }

    fn resume_all_paused(&mut self) {
        self.feed_starved();
        if self.accepts_can_resume() {
            self.resume_accepts();
        }
    }

    /// Restarts reads, and tries accepts again. Called before each turn.
    pub(crate) fn keep_house(&mut self) {
        self.resume_paused();
        if self.retry_accepts_at.is_some_and(|at| at <= Instant::now()) {
            self.resume_accepts();
        }
    }

    /// The nearest time at which a sleeping turn must return to the channel.
    fn next_deadline(&self) -> Option<Instant> {
        let close = self.closes.front().map(|(deadline, _)| *deadline);
        let own = earlier(self.timers.next_deadline(), close);
        earlier(own, earlier(self.retry_accepts_at, self.promotion_due))
    }

    /// Leaves to the kernel, for ever, the memory of operations that would not end.
    pub(crate) fn leak_pending(&mut self) {
        std::mem::forget(Rc::clone(&self.read_pool));
        std::mem::forget(Rc::clone(&self.write_pool));
        for index in self.ops.indices() {
            match self.ops.remove(index).map(|op| op.kind) {
                Some(OpKind::Read { data, .. }) => data.leak(),
                Some(OpKind::Write { data, .. }) => std::mem::forget(data),
                _ => {}
            }
        }
    }

    /// A buffer that the engine filled.
    #[inline]
    pub(crate) fn filled(&self, done: &Done) -> Option<Buffer> {
        done.has(Done::BUFFER).then(|| self.pool_of(done).claim(done.buffer, 0, done.result.max(0) as u32))
    }

    /// Longest wait that ends by `deadline` and the channel's own next deadline.
    pub(crate) fn wait_until(&self, deadline: Option<Instant>, now: &Now) -> Option<Duration> {
        let at = earlier(deadline, self.next_deadline())?;
        Some(at.saturating_duration_since(now.get()))
    }
}

/// A kernel result as Rust has it.
#[inline]
pub(crate) fn outcome(result: i32) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

#[inline]
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Takes the first of a queue. One that is empty then begins anew at the first place of its memory,
/// which is in the cache more likely than the next.
#[inline]
pub(crate) fn take_first<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    first
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn what_each_message_needs_is_as_small_as_a_cache_line() {
        const HEADER: usize = 8;
        assert!(HEADER + offset_of!(HandleEntry, writes) + size_of::<u32>() <= 64);
        // The kind of an operation, and what a stream of reads has.
        assert!(HEADER + offset_of!(Op, kind) + size_of::<u32>() + size_of::<Quota>() <= 64);
    }
}
