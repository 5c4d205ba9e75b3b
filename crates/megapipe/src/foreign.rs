//! What an interface for another language needs on top of the channel: sources that stay
//! with their owner when a call fails, and memory that the caller can have back.
//!
//! A C caller lends memory to reads and writes ([`Foreign`]) and must have it back when a
//! handle of its own is closed, while Rust callers move theirs in. [`Channel::take_back`]
//! makes that promise; everything else about a close is the same for both.
#![allow(unsafe_code)] // a descriptor number of a C caller becomes an owned descriptor

use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::buffer::Foreign;
use crate::channel::Channel;
use crate::core::{Core, File, Op, OpKind, WriteState};
use crate::engine::Engine;
use crate::engine::view::View;
use crate::engine::{Request, Wait};
use crate::error::{ControlError, DispatchError, RegisterError};
use crate::id::Handle;
use crate::lwsocket::{LwFile, LwSocket};
use crate::op_list::NO_OP;
use crate::source::Shape;

/// How long [`Channel::take_back`] waits for the kernel. Requests on sockets and pipes end
/// as they are cancelled; one on a disk file that a worker has begun goes on to its end,
/// which never comes from a network file system that hangs.
const PATIENCE: Duration = Duration::from_millis(100);

impl Foreign {
    /// The first byte, as it was lent.
    #[doc(hidden)]
    pub fn address(&self) -> *mut u8 {
        self.address
    }
}

#[doc(hidden)]
impl Channel {
    /// Whether this is the process that made the channel, and not its child.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.fork_mark.is_here()
    }

    /// [`Channel::register`] for a descriptor that stays the caller's if this fails.
    ///
    /// # Safety
    ///
    /// `fd` is the caller's to give away: if it is open, nothing else closes it after
    /// this call has succeeded. (That this channel has it already is EEXIST.)
    pub unsafe fn register_raw(&mut self, fd: RawFd, cookie: u64) -> Result<Handle, RegisterError> {
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(libc::EBADF).into());
        }
        // SAFETY: borrowed for one system call, which reports a closed descriptor.
        let shape = Shape::of(unsafe { BorrowedFd::borrow_raw(fd) })?;
        if self.core.handles.is_full() {
            return Err(RegisterError::HandlesFull);
        }
        let place = fd as usize;
        let before = self.registered_raw.get(place).copied().unwrap_or(Handle::NONE);
        let holder = self.core.handles.get(before.index, before.generation);
        if holder.is_some_and(|entry| matches!(&entry.file, File::Fd(own) if own.as_raw_fd() == fd)) {
            return Err(std::io::Error::from_raw_os_error(libc::EEXIST).into());
        }
        // SAFETY: `Shape::of` saw it open, and the caller gives it away.
        let file = File::Fd(unsafe { OwnedFd::from_raw_fd(fd) });
        let handle = self.core.add_handle(file, shape, cookie).map_err(|file| {
            if let File::Fd(fd) = file {
                mem::forget(fd);
            }
            RegisterError::HandlesFull
        })?;
        if self.registered_raw.len() <= place {
            self.registered_raw.resize(place + 1, Handle::NONE);
        }
        self.registered_raw[place] = handle;
        if shape.is_stream() {
            self.offer_if_eager(handle);
        }
        Ok(handle)
    }

    /// Whether the next registration would find the handle table full.
    pub fn handles_full(&self) -> bool {
        self.core.handles.is_full()
    }

    /// A descriptor for the same open file; the lightweight socket stays as it is, for a
    /// caller that keeps it when there is no descriptor to be had.
    ///
    /// # Errors
    ///
    /// As for [`Channel::to_fd`].
    pub fn descriptor_of(&mut self, socket: &LwSocket) -> Result<OwnedFd, ControlError> {
        match &socket.file {
            LwFile::Private(fd) => Ok(fd.try_clone()?),
            file => Ok(self.engine.export(&mut View::of(&mut self.core), file)?),
        }
    }

    /// Returns when neither the kernel nor the channel uses memory that was lent to
    /// operations of `handle`: reads into it are cancelled, and what is left to write is
    /// copied and still goes out. For the moment before the handle is closed; a stale
    /// handle holds nothing.
    ///
    /// # Errors
    ///
    /// The kernel refused the batch, or did not let go of the memory within some 100 ms
    /// (ETIMEDOUT): the memory is still in use.
    pub fn take_back(&mut self, handle: Handle) -> Result<(), DispatchError> {
        let Ok(index) = self.core.open(handle) else {
            return Ok(());
        };
        if !self.core.holds_foreign(index) {
            return Ok(());
        }
        self.core.cancel_foreign_reads(index);
        self.core.cancel_foreign_send(index);
        let deadline = Instant::now() + PATIENCE;
        let ended = self.turn_through(Wait::No).and_then(|()| self.wait_for_foreign(index, deadline));
        if let Ok(entry) = self.core.open_entry(handle) {
            entry.takes_back = false;
        }
        ended
    }

    /// [`Channel::take_back`] for every handle, before the channel ends; accepts are cancelled first.
    ///
    /// # Errors
    ///
    /// As for one.
    pub fn take_back_all(&mut self) -> Result<(), DispatchError> {
        self.core.cancel_all_accepts();
        for index in self.core.handles.indices() {
            self.take_back(self.core.name_of(index))?;
        }
        Ok(())
    }

    fn wait_for_foreign(&mut self, index: u32, deadline: Instant) -> Result<(), DispatchError> {
        // Results of other operations must not keep the wait from sleeping.
        let mut arrived = VecDeque::new();
        let mut result = Ok(());
        while result.is_ok() && self.core.holds_foreign(index) {
            arrived.append(&mut self.core.done);
            let left = deadline.saturating_duration_since(Instant::now());
            result = match left.is_zero() {
                true => Err(DispatchError::Io(std::io::Error::from_raw_os_error(libc::ETIMEDOUT))),
                false => self.turn_through(Wait::For(Some(left))),
            };
        }
        if !arrived.is_empty() {
            arrived.append(&mut self.core.done);
            self.core.done = arrived;
        }
        result
    }

    /// One turn; a signal is no reason to stop.
    fn turn_through(&mut self, wait: Wait) -> Result<(), DispatchError> {
        match self.turn(wait) {
            Err(DispatchError::Interrupted) => Ok(()),
            result => result,
        }
    }
}

impl Core {
    /// Whether the engine uses lent memory of this handle. Copies lent memory that only
    /// waits in the write queue.
    fn holds_foreign(&mut self, index: u32) -> bool {
        let Some(entry) = self.handles.at(index) else {
            return false;
        };
        let (reads, writes) = (entry.reads.head, entry.writes.head);
        let sending = matches!(entry.write_state, WriteState::Held | WriteState::InEngine);
        let mut holds = false;
        self.each_of_list(reads, |op| {
            holds |= op.started && matches!(&op.kind, OpKind::Read { data, .. } if data.is_foreign());
        });
        if !sending {
            self.own_queued_writes(index);
            return holds;
        }
        self.each_of_list(writes, |op| {
            holds |= matches!(&op.kind, OpKind::Write { data, .. } if data.is_foreign());
        });
        holds
    }

    /// Copies what C callers lent to the queued writes of a handle that the engine does
    /// not have.
    pub(crate) fn own_queued_writes(&mut self, index: u32) {
        let head = self.handles.at(index).map_or(NO_OP, |entry| entry.writes.head);
        self.each_of_list(head, |op| {
            if let OpKind::Write { data, .. } = &mut op.kind
                && data.is_foreign()
            {
                *data = data.to_owned_copy();
            }
        });
    }

    fn cancel_foreign_reads(&mut self, index: u32) {
        let mut at = self.handles.at(index).map_or(NO_OP, |entry| entry.reads.head);
        while let Some(op) = self.ops.at(at) {
            let next = op.next;
            let lent = matches!(&op.kind, OpKind::Read { data, .. } if data.is_foreign());
            if lent && op.started && !op.cancelled {
                let id = self.op_id(at);
                self.request(Request::Cancel(id));
                if let Some(op) = self.ops.at_mut(at) {
                    op.cancelled = true;
                }
            }
            at = next;
        }
    }

    /// Cancels a send that waits for room; what it did not send is copied and goes on.
    fn cancel_foreign_send(&mut self, index: u32) {
        if let Some(entry) = self.handles.at_mut(index) {
            entry.takes_back = true;
            if entry.write_state == WriteState::Held {
                self.request(Request::CancelWrites(index));
            }
        }
    }

    fn each_of_list(&mut self, head: u32, mut f: impl FnMut(&mut Op)) {
        let mut at = head;
        while let Some(op) = self.ops.at_mut(at) {
            at = op.next;
            f(op);
        }
    }
}
