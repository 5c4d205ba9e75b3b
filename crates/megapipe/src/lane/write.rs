//! What is sent on a promoted connection: into the ring, around it, and bells.

use std::os::fd::AsFd;

use ring::WakeUp;

use crate::buffer::WriteData;
use crate::core::{Core, Op, OpKind, WriteState};
use crate::engine::Done;
use crate::id::{Handle, OpId};
use crate::op_list::NO_OP;
use crate::rejected::Rejected;
use crate::write::{Destination, Fresh};

/// What a bell consists of.
const BELL: &[u8] = &[0];

impl Core {
    /// Writes to a promoted connection as far as its ring has room; how many bytes that
    /// were. 0 too if they have to go through the kernel, or the other end broke the rules.
    pub(crate) fn write_to_ring(&mut self, handle: u32, data: &WriteData, skip: usize) -> usize {
        let mut parts = [&[] as &[u8]; 16];
        let (mut count, mut total) = (0, 0);
        data.for_each_part(skip, &mut |part| {
            if count < parts.len() {
                parts[count] = part;
                count += 1;
                total += part.len();
            }
        });
        self.send_to_ring(handle, parts[..count].iter().copied(), total)
    }

    /// As [`Self::write_to_ring`], of bytes in one piece.
    #[inline]
    pub(crate) fn write_bytes_to_ring(&mut self, handle: u32, bytes: &[u8]) -> usize {
        self.send_to_ring(handle, [bytes], bytes.len())
    }

    #[inline]
    fn send_to_ring<'a>(
        &mut self,
        handle: u32,
        parts: impl IntoIterator<Item = &'a [u8]>,
        total: usize,
    ) -> usize {
        let Some(entry) = self.handles.at_mut(handle) else { return 0 };
        let idle = entry.write_state == WriteState::Idle && entry.writes.head == NO_OP;
        let Some(lane) = entry.lane.as_deref_mut().filter(|lane| !lane.sends_to_kernel()) else { return 0 };
        if lane.connection.peer_is_demoted() {
            lane.connection.kernel_sends();
            return 0;
        }
        lane.connection.send(parts, total, idle).unwrap_or_else(|corrupt| {
            lane.break_off(corrupt);
            0
        })
    }

    /// The ring is full, and its reader is awake: room is likely to be near, and nearer than
    /// the way through the kernel. Writes on as long as some comes.
    pub(crate) fn wait_for_room(&mut self, handle: u32, bytes: &[u8]) -> usize {
        const PATIENCE: u32 = 100;
        /// Rounds after which the reader may need this very core.
        const EAGER: u32 = 40;
        const PAUSES: u32 = 16;
        let mut written = 0;
        let mut left = PATIENCE;
        while written < bytes.len() && left > 0 {
            match self.lane(handle) {
                Some(lane)
                    if lane.bell_under_way.is_none()
                        && !lane.sends_to_kernel()
                        && lane.connection.sends_to_ring() => {}
                _ => break,
            }
            match left > PATIENCE - EAGER {
                true => (0..PAUSES).for_each(|_| std::hint::spin_loop()),
                false => std::thread::yield_now(),
            }
            let count = self.write_bytes_to_ring(handle, &bytes[written..]);
            written += count;
            left = if count > 0 { PATIENCE } else { left - 1 };
        }
        written
    }

    /// Queues the rest of a write whose first part was taken already, whatever the bounds.
    pub(crate) fn queue_over(&mut self, handle: u32, data: WriteData) {
        let kind = OpKind::Write { data, quiet: true, to: Destination::Peer, offset: None };
        self.queue_begun(handle, kind, 0);
    }

    /// Queues a write of which the ring took `written` bytes.
    fn queue_begun(&mut self, handle: u32, kind: OpKind, written: usize) -> OpId {
        let op = self.add_begun(handle, kind, written);
        self.push_write(handle, op.index);
        self.request_writes(handle);
        op
    }

    fn add_begun(&mut self, handle: u32, kind: OpKind, written: usize) -> OpId {
        let op = Op { written, ..Op::new(self.name_of(handle), kind) };
        let (index, generation) = self.ops.insert_over(op);
        OpId { index, generation }
    }

    /// The ring is full, or has an end: what follows goes through the kernel.
    pub(crate) fn spill(&mut self, handle: u32) {
        self.stats.spills += 1;
        let Some(lane) = self.lane(handle) else { return };
        if lane.bell_under_way.is_some() {
            // Nobody could tell the bell from the bytes behind it.
            tracing::warn!("a promoted connection is reset: its bell cannot be submitted");
            lane.broken = true;
        } else if let Err(corrupt) = lane.connection.spill() {
            lane.break_off(corrupt);
        }
    }

    /// A write to a connection that was broken off fails as on one that was reset.
    #[cold]
    pub(crate) fn fail_promoted(&mut self, handle: Handle, data: WriteData, quiet: bool) -> OpId {
        let kind = OpKind::Write { data, quiet, to: Destination::Peer, offset: None };
        let (op, _) = self.ops.insert_over(Op::new(handle, kind));
        let id = self.op_id(op);
        self.done.push_back(Done::plain(id, -libc::ECONNRESET));
        id
    }

    /// Ends a write of which the ring took `written` bytes: at once if that is all, or with
    /// the kernel's part.
    pub(crate) fn queue_promoted(
        &mut self,
        handle: u32,
        data: WriteData,
        quiet: bool,
        written: usize,
    ) -> Result<OpId, Rejected<WriteData>> {
        let whole = written == data.len();
        self.stats.ring_writes += u64::from(whole);
        if whole && quiet {
            return Ok(OpId::NONE);
        }
        let kind = OpKind::Write { data, quiet, to: Destination::Peer, offset: None };
        if whole {
            let id = self.add_begun(handle, kind, written);
            self.done.push_back(Done::plain(id, written.min(i32::MAX as usize) as i32));
            return Ok(id);
        }
        if written == 0 {
            return self
                .queue_write(handle, kind)
                .map_err(|(reason, kind)| Rejected::new(reason, kind.into_write_data()));
        }
        // The peer may have the first part already: this one cannot be refused any more.
        Ok(self.queue_begun(handle, kind, written))
    }

    /// A send of this handle's own came to so many bytes.
    #[inline]
    pub(crate) fn lane_kernel_took(&mut self, handle: u32, result: i32) {
        let Some(lane) = self.lane(handle) else { return };
        if result <= 0 {
            lane.connection.kernel_refused();
            self.answer_if_left(handle);
            return;
        }
        lane.connection.kernel_accepted(result as usize);
        if !lane.hot {
            lane.connection.publish_counts();
        }
    }

    /// A send through the kernel is about to begin.
    #[inline]
    pub(crate) fn lane_about_to_send(&mut self, handle: u32) {
        if self.lane(handle).is_some_and(|lane| lane.connection.about_to_send_over_tcp()) {
            self.answer_leaving(handle);
        }
    }

    /// No write is queued from here on but those that are.
    pub(crate) fn lane_sends_no_more(&mut self, handle: u32) {
        if let Some(lane) = self.lane(handle) {
            lane.connection.sends_no_more();
            self.answer_if_left(handle);
        }
    }

    #[inline]
    pub(crate) fn answer_if_left(&mut self, handle: u32) {
        if self.lane(handle).is_some_and(|lane| lane.connection.peer_is_demoted()) {
            self.answer_leaving(handle);
        }
    }

    /// The other end left the ring: what it did not take is queued before all else.
    #[cold]
    fn answer_leaving(&mut self, handle: u32) {
        let Some(entry) = self.handles.at_mut(handle) else { return };
        let busy = matches!(entry.write_state, WriteState::InEngine | WriteState::Held);
        let Some(lane) = entry.lane.as_deref_mut() else { return };
        if busy || lane.bell_under_way.is_some() || lane.broken {
            // What is under way comes here again when it has ended.
            return;
        }
        let mut owed = Vec::new();
        let recalled = lane.connection.recall(true).and_then(|count| {
            owed.resize(count, 0);
            let copied = lane.connection.peek_owed(&mut owed)?;
            owed.truncate(copied);
            lane.connection.resent(copied)
        });
        if let Err(corrupt) = recalled {
            lane.break_off(corrupt);
        } else if !owed.is_empty() {
            self.queue_behind_all(handle);
            self.queue_as_first(handle, WriteData::from(owed));
            self.request_writes(handle);
        }
    }

    /// Queues a wake-up of the peer: it goes with the next turn, before anything else.
    pub(crate) fn queue_bell(&mut self, handle: u32, by: WakeUp) {
        let name = self.name_of(handle);
        let Some(lane) = self.lane(handle) else { return };
        lane.bell_under_way = Some(by);
        if by == WakeUp::Tcp {
            self.fresh.push_back(Fresh { handle, data: WriteData::from(BELL), bell: true });
        } else {
            self.doorbells.push_back(name);
        }
        self.bells += 1;
    }

    /// Writes to the doorbells that are queued, and stores the time in the segments of all queued wake-ups. Drops those over
    /// TCP for peers that have closed meanwhile: they consumed the bytes without one, and the RST that answers it would
    /// discard what they still send.
    #[inline(never)]
    pub(crate) fn ring_doorbells(&mut self) {
        let now = sys::clock::monotonic();
        while let Some(handle) = self.doorbells.pop_front() {
            self.ring_doorbell(handle, now);
        }
        let mut place = 0;
        while let Some(&Fresh { handle, bell, .. }) = self.fresh.get(place) {
            if let Some(lane) = self.lane(handle).filter(|_| bell) {
                if lane.connection.peer_reads_no_more() {
                    self.fresh.remove(place);
                    self.forget_bell(handle, true);
                    continue;
                }
                lane.connection.wakes_at(now);
            }
            place += 1;
        }
    }

    fn ring_doorbell(&mut self, handle: Handle, now: u64) {
        self.bells -= 1;
        let Some(entry) = self.handles.get_mut(handle.index, handle.generation) else { return };
        let Some(lane) = entry.lane.as_deref_mut() else { return };
        lane.bell_under_way = None;
        lane.connection.wakes_at(now);
        self.stats.system_calls += 1;
        if lane.doorbells.as_ref().is_some_and(|both| sys::doorbell::ring(both.peer.as_fd(), both.kind)) {
            self.stats.doorbells += 1;
        } else if lane.connection.may_wake_over_tcp() {
            return self.queue_bell(handle.index, WakeUp::Tcp);
        }
        self.answer_if_left(handle.index);
    }

    /// What became of a bell.
    pub(crate) fn settle_bell(&mut self, handle: u32, taken: bool) {
        self.bells -= 1;
        let Some(lane) = self.lane(handle).filter(|lane| lane.bell_under_way.is_some()) else { return };
        lane.bell_under_way = None;
        if taken {
            lane.connection.wake_up_was_accepted();
            self.stats.bells += 1;
        } else {
            lane.connection.kernel_refused();
        }
        self.answer_if_left(handle);
    }

    /// A closed connection's bell is not rung.
    pub(crate) fn forget_bell(&mut self, handle: u32, bell: bool) {
        if bell {
            self.settle_bell(handle, false);
        }
    }
}
