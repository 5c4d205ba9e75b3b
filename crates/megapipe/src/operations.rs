//! The calls that queue operations: each checks its arguments, adds an operation to the
//! tables, and submits the batch when it has reached its threshold.

use std::net::Shutdown;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use socket2::SockAddr;

use crate::accept::{AcceptAs, AcceptCount, AcceptState};
use crate::buffer::{Buffer, ReadData, WriteData};
use crate::channel::Channel;
use crate::core::{Op, OpKind, State, WriteState};
use crate::engine::sockets::SocketCalls;
use crate::engine::view::View;
use crate::engine::{Done, Request, Wait};
use crate::error::{CancelError, ControlError, PoolDry, StaleHandle, SubmitError};
use crate::id::{Handle, OpId};
use crate::quota::Quota;
use crate::rejected::Rejected;
use crate::source::Shape;
use crate::timer::{Due, FAR};
use crate::write::{Destination, PARTS_MAX};

impl Channel {
    /// Accepts connections from a listening socket; each is a completion of its own.
    ///
    /// Accepts of one listener stand in line as reads do: the first takes connections until it ends,
    /// then the second does. One that is paused for want of room keeps its place. (A socket that was
    /// registered before listen(2) keeps no such order.)
    ///
    /// With io_uring the oldest unlimited accept of a listener gets every wake-up, and while its channel
    /// is away from [`Self::dispatch`], other channels that accept from the same socket are not woken.
    /// Share one listener by [`Self::register_partitioned`].
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; that the socket does not listen is an [`crate::Event::Accept`] with EINVAL.
    pub fn accept(
        &mut self,
        handle: Handle,
        count: AcceptCount,
        kind: AcceptAs,
    ) -> Result<OpId, SubmitError> {
        self.start_accept(handle, AcceptState::new(count, kind, false))
    }

    /// As [`Self::accept`]; each connection comes with its peer's address, at no system call
    /// more. Connections are accepted one by one, at most one a turn: for the highest rates of
    /// short connections use [`Self::accept`], and [`Self::peer_address`] where it matters.
    ///
    /// # Errors
    ///
    /// As for [`Self::accept`].
    pub fn accept_with_peer(
        &mut self,
        handle: Handle,
        count: AcceptCount,
        kind: AcceptAs,
    ) -> Result<OpId, SubmitError> {
        self.start_accept(handle, AcceptState::new(count, kind, true))
    }

    fn start_accept(&mut self, handle: Handle, state: AcceptState) -> Result<OpId, SubmitError> {
        if state.count == AcceptCount::Exactly(0) {
            return Err(SubmitError::InvalidArgument);
        }
        let index = self.core.open(handle)?;
        self.require(index, Shape::is_socket)?;
        if state.kind == AcceptAs::Fd && self.core.is_of_stack(index) {
            return Err(SubmitError::Unsupported);
        }
        let op = self.core.queue_accept(index, state)?;
        self.flush_if_due();
        Ok(op)
    }

    /// Connects a socket (connect(2)).
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn connect(&mut self, handle: Handle, address: &SockAddr) -> Result<OpId, SubmitError> {
        let index = self.core.open(handle)?;
        self.require(index, Shape::is_socket)?;
        let op = self.core.add_and_start(index, OpKind::Connect(Box::new(address.clone())))?;
        // Writes wait for the connection as they wait for room: none overtakes it.
        if let Some(entry) = self.core.handles.at_mut(index) {
            entry.write_blocked = true;
        }
        self.flush_if_due();
        Ok(op)
    }

    /// Reads once, into a buffer of the pool that is chosen when there is data.
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; any read of a listening socket is a [`crate::Event::Read`] with ENOTCONN.
    pub fn read(&mut self, handle: Handle) -> Result<OpId, SubmitError> {
        self.start_read(handle, ReadData::None, None).map_err(|rejected| rejected.reason)
    }

    /// Reads once, into the vector's capacity (not its present content).
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the vector back.
    pub fn read_into(&mut self, handle: Handle, room: Vec<u8>) -> Result<OpId, Rejected<ReadData>> {
        self.start_read(handle, ReadData::Vec(room), None)
    }

    /// Reads once, into the vectors' capacities in their order (readv(2)).
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the vectors back; at most 1024 (IOV_MAX).
    pub fn read_vectored(&mut self, handle: Handle, rooms: Vec<Vec<u8>>) -> Result<OpId, Rejected<ReadData>> {
        self.start_read(handle, ReadData::Vectored(rooms), None)
    }

    /// Reads once from a disk file at `offset` (pread(2)). Such reads are independent of
    /// each other.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the vector back.
    pub fn read_at(
        &mut self,
        handle: Handle,
        room: Vec<u8>,
        offset: u64,
    ) -> Result<OpId, Rejected<ReadData>> {
        self.start_read(handle, ReadData::Vec(room), Some(offset))
    }

    /// Any read, for interfaces over this one.
    #[doc(hidden)]
    pub fn start_read(
        &mut self,
        handle: Handle,
        mut data: ReadData,
        offset: Option<u64>,
    ) -> Result<OpId, Rejected<ReadData>> {
        let pooled = matches!(data, ReadData::None);
        let mut pieces = 0;
        data.for_each_room(&mut |_, _| pieces += 1);
        let check = self.open_to_read(handle).map_err(SubmitError::from).and_then(|index| {
            if !pooled && (data.room() == 0 || pieces > crate::read::PIECES_MAX) {
                return Err(SubmitError::InvalidArgument);
            }
            if offset.is_some() {
                self.require(index, |shape| shape == Shape::File)?;
            }
            Ok(index)
        });
        let index = match check {
            Ok(index) => index,
            Err(reason) => return Err(Rejected::new(reason, data)),
        };
        let op = self
            .core
            .queue_read(index, OpKind::Read { data, offset })
            .map_err(|(reason, kind)| Rejected::new(reason, kind.into_read_data()))?;
        self.flush_if_due();
        Ok(op)
    }

    /// Reads into pool buffers again and again, until end of file, an error, a cancel or
    /// a close. Costs no request per message: the kernel keeps the read armed. A program that keeps
    /// buffers uses [`Self::read_stream_with_quota`].
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn read_stream(&mut self, handle: Handle) -> Result<OpId, SubmitError> {
        self.start_read_stream(handle, None)
    }

    /// As [`Self::read_stream`], of which the program never holds more than `quota` buffers, so
    /// that no connection can take the whole pool. The stream goes on by itself when the program
    /// drops one of them; what comes meanwhile, the end of the stream too, waits in the kernel
    /// (of a promoted connection in its ring), whose window stops the peer.
    ///
    /// A buffer counts until it is dropped. One that is written quietly counts until the kernel has
    /// accepted its bytes, or the channel has copied them because the peer of that write does not
    /// read; [`Self::write`] gives it back with its completion, and it counts until that is
    /// dropped. Buffers that outlive their stream count for nothing; a new stream of the handle
    /// begins with none.
    ///
    /// [`Self::cancel`], [`Self::close`] and [`Self::unregister`] end the stream at once, however
    /// many buffers are held. A promotion changes nothing of this.
    ///
    /// The channel reads one buffer at a time, and asks for the next one when it hands one out.
    /// That adds a request for each buffer to the batch, and no system call.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn read_stream_with_quota(&mut self, handle: Handle, quota: NonZeroU16) -> Result<OpId, SubmitError> {
        self.core.has_quotas = true;
        self.core.read_pool.prepare_counting();
        self.core.ring_pool.prepare_counting();
        if let Some(pool) = &self.core.stack_pool {
            pool.prepare_counting();
        }
        self.start_read_stream(handle, Some(Quota::new(quota)))
    }

    fn start_read_stream(&mut self, handle: Handle, quota: Option<Quota>) -> Result<OpId, SubmitError> {
        let index = self.open_to_read(handle)?;
        let kind = OpKind::ReadStream { once: quota.is_some(), watch: false, quota };
        let op = self.core.queue_read(index, kind).map_err(|(reason, _)| reason)?;
        self.flush_if_due();
        Ok(op)
    }

    /// Writes all of `data`, behind the writes that are queued on the handle. The
    /// completion means that the kernel has accepted all of it, not that the peer has.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the data back.
    pub fn write(&mut self, handle: Handle, data: impl Into<WriteData>) -> Result<OpId, Rejected<WriteData>> {
        self.start_write(handle, data.into(), false, Destination::Peer, None)
    }

    /// Writes all of `data`, and reports nothing if that succeeds: for answers whose
    /// success the program does not wait for. A failure is an [`crate::Event::Write`].
    /// Cheaper than [`Self::write`] in that the channel need not return before it sleeps.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the data back; [`SubmitError::QueueFull`], after which an
    /// [`crate::Event::Writable`] comes, means that the peer is not reading: what is
    /// queued was tried first, and the kernel accepts no more. A peer that reads, but
    /// later than it sends, can cause it too: a server that wants to wait for such a peer
    /// uses [`Self::write`] and reads on when it completes.
    #[inline]
    pub fn write_quiet(
        &mut self,
        handle: Handle,
        data: impl Into<WriteData>,
    ) -> Result<(), Rejected<WriteData>> {
        let data = data.into();
        if self.is_promoted(handle) {
            return self.write_promoted(handle, data, true).map(drop);
        }
        match self.core.queue_fresh(handle, data) {
            Ok(()) => {
                self.flush_if_due();
                Ok(())
            }
            Err(data) => self.start_write(handle, data, true, Destination::Peer, None).map(drop),
        }
    }

    /// As [`Self::write_quiet`], for bytes that stay the caller's: they are copied, on a
    /// promoted connection straight into shared memory.
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; nothing of the bytes was sent then.
    #[inline]
    pub fn write_copy(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), SubmitError> {
        let mut written = 0;
        if self.is_promoted(handle) && self.fork_mark.is_here() {
            self.settle_spill(handle.index);
            written = self.core.write_bytes_to_ring(handle.index, bytes);
            if written > 0 {
                self.wake_if_wanted(handle.index);
            }
            if written < bytes.len() {
                written += self.write_to_slow_reader(handle.index, &bytes[written..]);
            }
            if written == bytes.len() {
                self.core.stats.ring_writes += 1;
                return Ok(());
            }
        }
        self.write_rest(handle, bytes, written)
    }

    fn write_rest(&mut self, handle: Handle, bytes: &[u8], written: usize) -> Result<(), SubmitError> {
        let rest = &bytes[written..];
        let data = match self.buffer() {
            Ok(mut buffer) if rest.len() <= buffer.remaining() => {
                buffer.extend_from_slice(rest);
                WriteData::from(buffer)
            }
            _ => WriteData::from(rest.to_vec()),
        };
        match self.write_quiet(handle, data) {
            Ok(()) => Ok(()),
            // The peer may have its beginning already: the rest goes out in any case.
            Err(rejected) if written > 0 => {
                self.core.queue_over(handle.index, rejected.into_data());
                Ok(())
            }
            Err(rejected) => Err(rejected.reason),
        }
    }

    /// Writes and shutdowns of the handle that the kernel has not accepted whole, those of the batch
    /// included. Right after [`Self::flush`] those are left for which there was no room.
    ///
    /// At 0 other calls on the descriptor, such as sendfile(2), come behind all that was written.
    /// This holds for a connection that stays in the kernel, which [`crate::Promotion::Off`] ensures.
    ///
    /// # Errors
    ///
    /// [`StaleHandle`].
    pub fn writes_queued(&self, handle: Handle) -> Result<u32, StaleHandle> {
        let index = self.core.open(handle)?;
        Ok(self
            .core
            .handles
            .at(index)
            .map_or(0, |entry| entry.writes.len + u32::from(entry.write_state == WriteState::Fresh)))
    }

    /// Writes to a disk file at `offset` (pwrite(2)).
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the data back.
    pub fn write_at(
        &mut self,
        handle: Handle,
        data: impl Into<WriteData>,
        offset: u64,
    ) -> Result<OpId, Rejected<WriteData>> {
        self.start_write(handle, data.into(), false, Destination::Peer, Some(offset))
    }

    /// Sends one message to `to` from a datagram socket (sendto(2)). Empty data is an
    /// empty datagram.
    ///
    /// # Errors
    ///
    /// [`Rejected`] gives the data back.
    pub fn send_to(
        &mut self,
        handle: Handle,
        data: impl Into<WriteData>,
        to: &SockAddr,
    ) -> Result<OpId, Rejected<WriteData>> {
        self.start_write(handle, data.into(), false, Destination::from(to), None)
    }

    pub(crate) fn start_write(
        &mut self,
        handle: Handle,
        data: WriteData,
        quiet: bool,
        to: Destination,
        offset: Option<u64>,
    ) -> Result<OpId, Rejected<WriteData>> {
        let check = self.core.open(handle).map_err(SubmitError::from).and_then(|index| {
            let shape = self.core.handles.at(index).map(|entry| entry.shape);
            if shape.is_some_and(Shape::is_datagram) {
                let mut parts = 0;
                data.for_each_part(0, &mut |_| parts += 1);
                if parts > PARTS_MAX {
                    return Err(SubmitError::InvalidArgument); // a message cannot be cut
                }
            } else {
                if data.is_empty() {
                    return Err(SubmitError::InvalidArgument);
                }
                if !matches!(to, Destination::Peer) {
                    return Err(SubmitError::Unsupported);
                }
            }
            if offset.is_some() {
                self.require(index, |shape| shape == Shape::File)?;
            }
            Ok(index)
        });
        let index = match check {
            Ok(index) => index,
            Err(reason) => return Err(Rejected::new(reason, data)),
        };
        if self.is_promoted(handle) {
            return self.write_promoted(handle, data, quiet);
        }
        let kind = OpKind::Write { data, quiet, to, offset };
        let op = self
            .queue_write(index, kind)
            .map_err(|(reason, kind)| Rejected::new(reason, kind.into_write_data()))?;
        self.flush_if_due();
        Ok(op)
    }

    /// Queues a write behind those of its handle. A full queue is sent first, so that
    /// only a full socket refuses more, and not a batch that was not submitted yet.
    fn queue_write(&mut self, index: u32, kind: OpKind) -> Result<OpId, (SubmitError, OpKind)> {
        // A send that waited for room may have ended; the next turn sends what is behind
        // it.
        const TURNS: u32 = 2;
        let mut queued = self.core.queue_write(index, kind);
        for _ in 0..TURNS {
            queued = match queued {
                Err((SubmitError::QueueFull, kind)) if self.fork_mark.is_here() => {
                    // The next dispatch reports a refusal.
                    let _ = self.turn(Wait::Flush);
                    self.core.queue_write(index, kind)
                }
                other => return other,
            };
        }
        queued
    }

    /// Ends the connection in both directions as shutdown(2) does, behind the writes that
    /// are queued: none of them is lost. The handle stays registered (paper, Table 1).
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn disconnect(&mut self, handle: Handle) -> Result<OpId, SubmitError> {
        self.shutdown(handle, Shutdown::Both)
    }

    /// Shuts one or both directions down, as shutdown(2) does. What includes sending comes
    /// behind the writes that are queued, none of which is lost; [`Shutdown::Read`] alone is
    /// done at once, and what the peer has sent by then can still be read.
    ///
    /// [`Shutdown::Write`] is the half-close: the peer sees the end of the stream behind the
    /// last write, and this side reads on.
    ///
    /// # Errors
    ///
    /// [`SubmitError`].
    pub fn shutdown(&mut self, handle: Handle, how: Shutdown) -> Result<OpId, SubmitError> {
        let index = self.core.open(handle)?;
        self.require(index, Shape::is_socket)?;
        let op = match how {
            Shutdown::Read => self.core.add_and_start(index, OpKind::Shutdown(how))?,
            _ => self.queue_write(index, OpKind::Disconnect(how)).map_err(|(reason, _)| reason)?,
        };
        if how != Shutdown::Read
            && let Some(promoted) = self.core.promoted(index)
        {
            promoted.connection.kernel_sends();
            self.core.promoted_sends_no_more(index);
        }
        self.flush_if_due();
        Ok(op)
    }

    /// Closes the file. No completion of the handle surfaces any more, and the handle is stale
    /// at once. Reads and accepts end now. Writes that are queued go out first, for at most
    /// [`crate::Config::close_timeout`]; then the peer gets its FIN.
    ///
    /// The channel reads nothing more: what the peer still sends waits in the kernel, whose
    /// window stops it. As with close(2), bytes that were never read turn the FIN into a RST,
    /// which may cost the peer what it has not read yet. A server that refuses a peer which is
    /// still sending therefore writes its answer, half-closes with [`Self::shutdown`], reads and
    /// drops what comes until the end of the stream or for a while, and closes then.
    ///
    /// # Errors
    ///
    /// [`StaleHandle`].
    pub fn close(&mut self, handle: Handle) -> Result<(), StaleHandle> {
        let index = self.open_here(handle)?;
        self.end_promoted(handle);
        self.core.close(index);
        self.flush_if_due();
        Ok(())
    }

    /// Closes the connection with RST instead of FIN; queued writes are dropped.
    ///
    /// # Errors
    ///
    /// [`ControlError`].
    pub fn reset(&mut self, handle: Handle) -> Result<(), ControlError> {
        let index = self.open_here(handle)?;
        self.engine.reset_on_close(&mut View::of(&mut self.core), index)?;
        self.forget_promoted(handle);
        self.core.finish_close(index);
        self.flush_if_due();
        Ok(())
    }

    /// The index of an open handle; a forked child must not touch the words of a promoted
    /// connection.
    fn open_to_read(&self, handle: Handle) -> Result<u32, StaleHandle> {
        if self.is_promoted(handle) { self.open_here(handle) } else { self.core.open(handle) }
    }

    #[inline]
    fn is_promoted(&self, handle: Handle) -> bool {
        let entry = self.core.handles.get(handle.index, handle.generation);
        entry.is_some_and(|entry| entry.promoted.is_some() && entry.state == State::Open)
    }

    /// Cancels one operation. Its completion then has ECANCELED, or the result that came
    /// first; a write of which the kernel has accepted some bytes goes on.
    ///
    /// # Errors
    ///
    /// [`CancelError`] if the operation is over.
    pub fn cancel(&mut self, op: OpId) -> Result<(), CancelError> {
        let entry = self.core.op_mut(op).ok_or(CancelError)?;
        match entry.kind {
            OpKind::Write { .. } | OpKind::Disconnect(_) => self.core.cancel_write(op),
            _ if entry.cancelled => {}
            OpKind::Accept(_) if entry.started => self.core.cancel_accept(op),
            OpKind::Timer { .. } => {
                entry.cancelled = true;
                self.ended_timers.push_back(op);
            }
            _ => {
                entry.cancelled = true;
                if entry.started {
                    self.core.request(Request::Cancel(op));
                } else {
                    self.core.done.push_back(Done::plain(op, -libc::ECANCELED));
                }
            }
        }
        self.flush_if_due();
        Ok(())
    }

    /// Completes once, `after` from now, with `cookie` and no handle.
    ///
    /// # Errors
    ///
    /// [`SubmitError::OperationsFull`].
    pub fn timer(&mut self, after: Duration, cookie: u64) -> Result<OpId, SubmitError> {
        let at = Instant::now() + after.min(FAR);
        let kind = OpKind::Timer { cookie, due: Due { at, entry_at: at } };
        let op = self.core.add_own_op(kind)?;
        self.core.timers.insert(at, op);
        self.core.timers_live += 1;
        Ok(op)
    }

    /// Has a timer fire `after` from now, instead of at the time it had. A move to a later time,
    /// as of an idle timeout with each message, only stores that time.
    ///
    /// # Errors
    ///
    /// [`CancelError`] if the timer's completion was handed out, if it was cancelled, or if `timer`
    /// is another operation.
    pub fn move_timer(&mut self, timer: OpId, after: Duration) -> Result<(), CancelError> {
        let at = Instant::now() + after.min(FAR);
        match self.core.op(timer) {
            Some(Op { kind: OpKind::Timer { .. }, cancelled: false, .. }) => self.core.move_timer(timer, at),
            _ => return Err(CancelError),
        }
        Ok(())
    }

    /// An empty buffer of the write pool, to be filled and written without allocating.
    ///
    /// # Errors
    ///
    /// [`PoolDry`]: all are filled or on their way.
    pub fn buffer(&mut self) -> Result<Buffer, PoolDry> {
        let id = self.core.write_pool.take_free().ok_or(PoolDry)?;
        Ok(self.core.write_pool.claim(id, 0, 0))
    }

    /// Submits the batch when it has reached its threshold. The next dispatch reports a
    /// refusal.
    #[inline]
    pub(crate) fn flush_if_due(&mut self) {
        if self.core.queued() >= self.core.config.batch_threshold as usize && self.fork_mark.is_here() {
            let _ = self.turn(Wait::Flush);
        }
    }

    pub(crate) fn require(&self, index: u32, fits: impl Fn(Shape) -> bool) -> Result<(), SubmitError> {
        match self.core.handles.at(index) {
            Some(entry) if fits(entry.shape) => Ok(()),
            Some(_) => Err(SubmitError::Unsupported),
            None => Err(SubmitError::StaleHandle),
        }
    }
}
