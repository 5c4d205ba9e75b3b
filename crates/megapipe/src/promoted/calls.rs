//! The channel's calls on a promoted connection: writes and the close.

use std::io;
use std::mem::MaybeUninit;

use ring::WakeUp;

use crate::buffer::WriteData;
use crate::channel::Channel;
use crate::core::WriteState;
use crate::engine::sockets::SocketCalls;
use crate::engine::view::View;
use crate::engine::{self, Wait};
use crate::error::SubmitError;
use crate::id::{Handle, OpId};
use crate::rejected::Rejected;

/// Turns in which a wake-up must reach the kernel; an engine repeats what is interrupted.
const FLUSHES_MAX: u32 = 8;

impl Channel {
    /// Writes to the ring; what does not fit goes through the kernel.
    pub(crate) fn write_promoted(
        &mut self,
        handle: Handle,
        data: WriteData,
        quiet: bool,
    ) -> Result<OpId, Rejected<WriteData>> {
        let index = handle.index;
        let len = data.len();
        if len == 0 {
            return Err(Rejected::new(SubmitError::InvalidArgument, data));
        }
        // In a forked child the ring is still the parent's.
        if !self.fork_mark.is_here() {
            return Err(Rejected::new(SubmitError::StaleHandle, data));
        }
        if !quiet && self.core.ops.is_full() {
            return Err(Rejected::new(SubmitError::OperationsFull, data));
        }
        let mut written = 0;
        self.settle_spill(index);
        while written < len {
            match self.core.write_to_ring(index, &data, written) {
                0 => break,
                count => written += count,
            }
        }
        if written > 0 {
            self.wake_if_wanted(index);
        }
        if written < len {
            let mut rest = &[] as &[u8];
            data.for_each_part(written, &mut |part| {
                if rest.is_empty() {
                    rest = part;
                }
            });
            written += self.write_to_slow_reader(index, rest);
        }
        if written < len
            && self.core.promoted(index).is_some_and(|promoted| promoted.connection.sends_to_ring())
        {
            // The ring is full. A wake-up under way must precede the bytes that go
            // through the kernel.
            for _ in 0..FLUSHES_MAX {
                if self.core.promoted(index).is_none_or(|promoted| promoted.wake_up_under_way.is_none()) {
                    break;
                }
                let _ = self.turn(Wait::Flush);
            }
            self.core.spill(index);
        }
        if self.core.promoted(index).is_some_and(|promoted| promoted.broken) {
            return Ok(self.core.fail_promoted(handle, data, quiet));
        }
        let op = self.core.queue_promoted(index, data, quiet, written)?;
        self.flush_if_due();
        Ok(op)
    }

    /// The ring is full: waits a moment for the peer to consume.
    pub(crate) fn write_to_slow_reader(&mut self, index: u32, bytes: &[u8]) -> usize {
        if self
            .core
            .promoted(index)
            .is_some_and(|promoted| promoted.wake_up_under_way == Some(WakeUp::Doorbell))
        {
            // Submit it: the peer is awake soon.
            let _ = self.turn(Wait::Flush);
        }
        let written = self.core.wait_for_room(index, bytes);
        if written > 0 {
            // The peer may have consumed all, and gone to sleep, in between.
            self.wake_if_wanted(index);
        }
        written
    }

    /// After a spill: submits queued writes, so that the ring can be used again once the
    /// peer has consumed them.
    #[inline]
    pub(crate) fn settle_spill(&mut self, index: u32) {
        let waits = |state| matches!(state, WriteState::Requested | WriteState::Fresh);
        if self.core.handles.at(index).is_some_and(|entry| waits(entry.write_state)) {
            let _ = self.turn(Wait::Flush);
        }
    }

    /// Closes a promoted connection; with unread bytes in its ring by a reset, as on TCP.
    pub(crate) fn end_promoted(&mut self, handle: Handle) {
        if self.core.promoted(handle.index).is_none() {
            return;
        }
        self.core.promoted_sends_no_more(handle.index);
        if let Some(promoted) = self.core.promoted(handle.index) {
            promoted.connection.reads_no_more(true);
        }
        if !self.only_wake_ups_unread(handle.index) {
            let _ = self.engine.reset_on_close(&mut View::of(&mut self.core), handle.index);
        }
        self.forget_promoted(handle);
    }

    /// Whether a promoted connection has no unread bytes. Discards the wake-up bytes in
    /// the kernel: it would count them as unread, send RST and drop what it has not sent
    /// yet. Waits for one that the peer is sending, for few rounds: all other connections
    /// of the channel wait, too.
    fn only_wake_ups_unread(&mut self, index: u32) -> bool {
        const READS_MAX: u32 = 64;
        self.core.settle_kernel_reads(index);
        let mut wake_ups = [MaybeUninit::uninit(); 256];
        let mut emptied = false;
        for _ in 0..READS_MAX {
            if self.core.promoted(index).is_none_or(|promoted| promoted.needs_reset()) {
                return false;
            }
            let fetched =
                engine::with_descriptor(&mut self.engine, &mut View::of(&mut self.core), index, |fd| {
                    socket2::SockRef::from(&fd).recv_with_flags(&mut wake_ups, libc::MSG_DONTWAIT)
                });
            let Some(promoted) = self.core.promoted(index) else { return false };
            match fetched {
                Ok(count @ 1..) if !promoted.drop_if_wake_ups(count) => return false,
                Ok(1..) => emptied = false,
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && promoted.connection.is_given_more() =>
                {
                    emptied = true;
                    std::thread::yield_now();
                }
                _ => return true,
            }
        }
        emptied
    }
}
