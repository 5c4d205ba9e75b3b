//! Sending on a promoted connection: through the ring, through the kernel, and wake-ups.

use std::os::fd::AsFd;

use ring::WakeUp;

use crate::buffer::WriteData;
use crate::core::{Core, Op, OpKind, WriteState};
use crate::engine::Done;
use crate::id::{Handle, OpId};
use crate::op_list::NO_OP;
use crate::rejected::Rejected;
use crate::write::{Destination, Fresh};

/// A wake-up over TCP: one byte of the stream, which the peer discards.
const WAKE_UP: &[u8] = &[0];

impl Core {
    /// Writes as much as the ring has room for and returns the number of bytes. Returns 0
    /// also if they have to go through the kernel, or the peer violated the protocol.
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
        let Some(promoted) = entry.promoted.as_deref_mut().filter(|promoted| !promoted.sends_to_kernel())
        else {
            return 0;
        };
        if promoted.connection.peer_is_demoted() {
            promoted.connection.kernel_sends();
            return 0;
        }
        promoted.connection.send(parts, total, idle).unwrap_or_else(|corrupt| {
            promoted.break_off(corrupt);
            0
        })
    }

    /// The ring is full, and the peer is awake: room comes sooner than through the
    /// kernel, most likely. Writes on as long as the peer consumes.
    pub(crate) fn wait_for_room(&mut self, handle: u32, bytes: &[u8]) -> usize {
        const PATIENCE: u32 = 100;
        /// Rounds without yielding; after these the peer may need this very core.
        const EAGER: u32 = 40;
        const PAUSES: u32 = 16;
        let mut written = 0;
        let mut left = PATIENCE;
        while written < bytes.len() && left > 0 {
            match self.promoted(handle) {
                Some(promoted)
                    if promoted.wake_up_under_way.is_none()
                        && !promoted.sends_to_kernel()
                        && promoted.connection.sends_to_ring() => {}
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

    /// Queues the rest of a write whose beginning was accepted already, whatever the
    /// bounds.
    pub(crate) fn queue_over(&mut self, handle: u32, data: WriteData) {
        let kind = OpKind::Write { data, quiet: true, to: Destination::Peer, offset: None };
        self.queue_begun(handle, kind, 0);
    }

    /// Queues a write of which `written` bytes are in the ring.
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

    /// The ring is full or ended: what follows goes through the kernel.
    pub(crate) fn spill(&mut self, handle: u32) {
        self.stats.spills += 1;
        let Some(promoted) = self.promoted(handle) else { return };
        if promoted.wake_up_under_way.is_some() {
            // The peer could not distinguish the wake-up from the bytes behind it.
            tracing::warn!("a promoted connection is reset: its wake-up cannot be submitted");
            promoted.broken = true;
        } else if let Err(corrupt) = promoted.connection.spill() {
            promoted.break_off(corrupt);
        }
    }

    /// A write after a protocol violation fails as after a reset.
    #[cold]
    pub(crate) fn fail_promoted(&mut self, handle: Handle, data: WriteData, quiet: bool) -> OpId {
        let kind = OpKind::Write { data, quiet, to: Destination::Peer, offset: None };
        let (op, _) = self.ops.insert_over(Op::new(handle, kind));
        let id = self.op_id(op);
        self.done.push_back(Done::plain(id, -libc::ECONNRESET));
        id
    }

    /// Completes a write of which `written` bytes are in the ring: at once if that is
    /// all, else when the kernel has accepted the others.
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
        // The peer may have the beginning already: the rest cannot be refused any more.
        Ok(self.queue_begun(handle, kind, written))
    }

    /// A send of this handle ended with this result.
    #[inline]
    pub(crate) fn promoted_kernel_accepted(&mut self, handle: u32, result: i32) {
        let Some(promoted) = self.promoted(handle) else { return };
        if result <= 0 {
            promoted.connection.kernel_refused();
            self.answer_if_demoted(handle);
            return;
        }
        promoted.connection.kernel_accepted(result as usize);
        if !promoted.hot {
            promoted.connection.publish_counts();
        }
    }

    /// A send through the kernel is about to begin.
    #[inline]
    pub(crate) fn promoted_about_to_send(&mut self, handle: u32) {
        if self.promoted(handle).is_some_and(|promoted| promoted.connection.about_to_send_over_tcp()) {
            self.answer_demotion(handle);
        }
    }

    /// No more writes will be queued.
    pub(crate) fn promoted_sends_no_more(&mut self, handle: u32) {
        if let Some(promoted) = self.promoted(handle) {
            promoted.connection.sends_no_more();
            self.answer_if_demoted(handle);
        }
    }

    #[inline]
    pub(crate) fn answer_if_demoted(&mut self, handle: u32) {
        if self.promoted(handle).is_some_and(|promoted| promoted.connection.peer_is_demoted()) {
            self.answer_demotion(handle);
        }
    }

    /// The peer is demoted: queues what it did not consume from the ring before all other
    /// writes.
    #[cold]
    fn answer_demotion(&mut self, handle: u32) {
        let Some(entry) = self.handles.at_mut(handle) else { return };
        let busy = matches!(entry.write_state, WriteState::InEngine | WriteState::Held);
        let Some(promoted) = entry.promoted.as_deref_mut() else { return };
        if busy || promoted.wake_up_under_way.is_some() || promoted.broken {
            // The end of the send or wake-up under way leads here again.
            return;
        }
        let mut owed = Vec::new();
        let recalled = promoted.connection.recall(true).and_then(|count| {
            owed.resize(count, 0);
            let copied = promoted.connection.peek_owed(&mut owed)?;
            owed.truncate(copied);
            promoted.connection.resent(copied)
        });
        if let Err(corrupt) = recalled {
            promoted.break_off(corrupt);
        } else if !owed.is_empty() {
            self.queue_behind_all(handle);
            self.queue_as_first(handle, WriteData::from(owed));
            self.request_writes(handle);
        }
    }

    /// Queues a wake-up of the peer: the next turn submits it before anything else.
    pub(crate) fn queue_wake_up(&mut self, handle: u32, by: WakeUp) {
        let name = self.name_of(handle);
        let Some(promoted) = self.promoted(handle) else { return };
        promoted.wake_up_under_way = Some(by);
        if by == WakeUp::Tcp {
            self.fresh.push_back(Fresh { handle, data: WriteData::from(WAKE_UP), wake_up: true });
        } else {
            self.doorbells.push_back(name);
        }
        self.wake_ups += 1;
    }

    /// Writes to the queued doorbells, and stores the time of all queued wake-ups. Drops
    /// wake-ups over TCP for peers that have closed meanwhile: they need none, and the
    /// RST that answers the byte would discard what they still send.
    #[inline(never)]
    pub(crate) fn write_doorbells(&mut self) {
        let now = sys::clock::monotonic();
        while let Some(handle) = self.doorbells.pop_front() {
            self.write_doorbell(handle, now);
        }
        let mut place = 0;
        while let Some(&Fresh { handle, wake_up, .. }) = self.fresh.get(place) {
            if let Some(promoted) = self.promoted(handle).filter(|_| wake_up) {
                if promoted.connection.peer_reads_no_more() {
                    self.fresh.remove(place);
                    self.forget_wake_up(handle, true);
                    continue;
                }
                promoted.connection.wakes_at(now);
            }
            place += 1;
        }
    }

    fn write_doorbell(&mut self, handle: Handle, now: u64) {
        self.wake_ups -= 1;
        let Some(entry) = self.handles.get_mut(handle.index, handle.generation) else { return };
        let Some(promoted) = entry.promoted.as_deref_mut() else { return };
        promoted.wake_up_under_way = None;
        promoted.connection.wakes_at(now);
        self.stats.system_calls += 1;
        if promoted.doorbells.as_ref().is_some_and(|both| sys::doorbell::ring(both.peer.as_fd(), both.kind)) {
            self.stats.doorbells += 1;
        } else if promoted.connection.may_wake_over_tcp() {
            return self.queue_wake_up(handle.index, WakeUp::Tcp);
        }
        self.answer_if_demoted(handle.index);
    }

    /// A wake-up over TCP was accepted by the kernel, or was not.
    pub(crate) fn settle_wake_up(&mut self, handle: u32, accepted: bool) {
        self.wake_ups -= 1;
        let Some(promoted) = self.promoted(handle).filter(|promoted| promoted.wake_up_under_way.is_some())
        else {
            return;
        };
        promoted.wake_up_under_way = None;
        if accepted {
            promoted.connection.wake_up_was_accepted();
            self.stats.bells += 1;
        } else {
            promoted.connection.kernel_refused();
        }
        self.answer_if_demoted(handle);
    }

    /// Drops a wake-up of a closed connection.
    pub(crate) fn forget_wake_up(&mut self, handle: u32, wake_up: bool) {
        if wake_up {
            self.settle_wake_up(handle, false);
        }
    }
}
