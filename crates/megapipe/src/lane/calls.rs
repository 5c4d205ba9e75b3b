//! What the channel's calls do on a promoted connection: writes into its ring, and its end.

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

/// Turns that a wake-up may take to reach the kernel; an engine repeats what is interrupted.
const FLUSHES_MAX: u32 = 8;

impl Channel {
    /// A write to a promoted connection: into the ring, and what does not fit behind it
    /// through the kernel.
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
        // The ring is the parent's too.
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
            self.ring_if_wanted(index);
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
        if written < len && self.core.lane(index).is_some_and(|lane| lane.connection.sends_to_ring()) {
            // The ring is full. A wake-up that is under way goes before what follows.
            for _ in 0..FLUSHES_MAX {
                if self.core.lane(index).is_none_or(|lane| lane.bell_under_way.is_none()) {
                    break;
                }
                let _ = self.turn(Wait::Flush);
            }
            self.core.spill(index);
        }
        if self.core.lane(index).is_some_and(|lane| lane.broken) {
            return Ok(self.core.fail_promoted(handle, data, quiet));
        }
        let op = self.core.queue_promoted(index, data, quiet, written)?;
        self.flush_if_due();
        Ok(op)
    }

    /// The ring is full: waits a moment for its reader.
    pub(crate) fn write_to_slow_reader(&mut self, index: u32, bytes: &[u8]) -> usize {
        if self.core.lane(index).is_some_and(|lane| lane.bell_under_way == Some(WakeUp::Doorbell)) {
            // It is soon awake.
            let _ = self.turn(Wait::Flush);
        }
        let written = self.core.wait_for_room(index, bytes);
        if written > 0 {
            // It may have taken all, and gone to sleep, in between.
            self.ring_if_wanted(index);
        }
        written
    }

    /// After a spill: hands the kernel what waits for it, so that the ring can be used
    /// again once the reader has come so far.
    #[inline]
    pub(crate) fn settle_spill(&mut self, index: u32) {
        let waits = |state| matches!(state, WriteState::Requested | WriteState::Fresh);
        if self.core.handles.at(index).is_some_and(|entry| waits(entry.write_state)) {
            let _ = self.turn(Wait::Flush);
        }
    }

    /// A promoted connection is closed. With bytes in its ring that were never read it is
    /// reset, as on TCP.
    pub(crate) fn end_lane(&mut self, handle: Handle) {
        if self.core.lane(handle.index).is_none() {
            return;
        }
        self.core.lane_sends_no_more(handle.index);
        if let Some(lane) = self.core.lane(handle.index) {
            lane.connection.reads_no_more(true);
        }
        if !self.unread_are_bells(handle.index) {
            let _ = self.engine.reset_on_close(&mut View::of(&mut self.core), handle.index);
        }
        self.forget_lane(handle);
    }

    /// Whether a promoted connection leaves no bytes unread. Discards the wake-up bytes in the
    /// kernel, which would count them as unread, send RST and drop what it has not sent yet.
    /// One that is just coming is waited for, but not for long: all other connections of the
    /// channel wait, too.
    fn unread_are_bells(&mut self, index: u32) -> bool {
        const READS_MAX: u32 = 64;
        self.core.settle_all_of_lane(index);
        let mut bells = [MaybeUninit::uninit(); 256];
        let mut emptied = false;
        for _ in 0..READS_MAX {
            if self.core.lane(index).is_none_or(|lane| lane.needs_reset()) {
                return false;
            }
            let fetched =
                engine::with_descriptor(&mut self.engine, &mut View::of(&mut self.core), index, |fd| {
                    socket2::SockRef::from(&fd).recv_with_flags(&mut bells, libc::MSG_DONTWAIT)
                });
            let Some(lane) = self.core.lane(index) else { return false };
            match fetched {
                Ok(count @ 1..) if !lane.took_bells(count) => return false,
                Ok(1..) => emptied = false,
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && lane.connection.is_given_more() =>
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
