//! How much a flow may hold: more where the path takes more, and less where all flows together have
//! little (the receiver after M. Fisk and W. Feng, Dynamic Right-Sizing in TCP, 2001, as Linux does it).

use super::Stack;
use super::seq::Seq;
use crate::control::Control;
use crate::time::Time;

/// Of the room that is left for all, one flow can have one part in so many beyond its first buffer: those
/// that come later find some, and all end up with equal shares (A. Choudhury and E. Hahne, Dynamic Queue
/// Length Thresholds, 1998).
const SHARE: u32 = 4;

/// Microseconds that a round trip counts for at least, and without a measurement.
const LEAST_ROUND: u32 = 10_000;
const UNKNOWN_ROUND: u32 = 100_000;

impl<C: Control> Stack<C> {
    /// Bytes that may be unread.
    #[inline]
    pub(crate) fn receive_space(&self, slot: u32) -> u32 {
        let chosen = self.choices.of(slot).receive_buffer;
        let grown = self.limits.first_receive_buffer << self.flows[slot].grown();
        if chosen > 0 { chosen } else { grown.min(self.limits.receive_buffer) }
    }

    /// Bytes that may be unsent or unacknowledged, where all flows together have `room`.
    pub(crate) fn send_space(&self, slot: u32, room: u32) -> u32 {
        let chosen = self.choices.of(slot).send_buffer;
        let first = self.limits.first_send_buffer;
        let window = self.flows[slot].window.congestion.saturating_mul(2);
        let grown = window.min(self.limits.send_buffer).min(room / SHARE);
        if chosen > 0 { chosen } else { first.max(grown) }
    }

    /// The most that the window of one flow may be where all together have `room`.
    #[inline]
    pub(crate) fn window_share(room: u32) -> u32 {
        room / SHARE
    }

    /// The program has read these bytes.
    #[inline]
    pub(crate) fn was_read(&mut self, now: Time, slot: u32, (from, upto): (Seq, Seq), room: u32) {
        // Looked at where a part of the buffer ends, which is rare.
        let shift = self.part_bits + self.flows[slot].grown();
        if from.0 >> shift != upto.0 >> shift {
            self.part_was_read(now, slot, (upto - from) >> shift, room);
        }
    }

    #[inline(never)]
    fn part_was_read(&mut self, now: Time, slot: u32, parts: u32, room: u32) {
        let lasting = &mut self.lasting[slot as usize];
        let micros = now.micros() as u32;
        let elapsed = micros.wrapping_sub(std::mem::replace(&mut lasting.read_at, micros));
        let hot = &mut self.flows[slot];
        let round = if hot.srtt > 0 { hot.srtt.max(LEAST_ROUND) } else { UNKNOWN_ROUND };
        let limits = &self.limits;
        let may_grow = limits.first_receive_buffer << hot.grown() < limits.receive_buffer;
        let half_is_free = room >= self.received_bytes / 2;
        if may_grow && half_is_free && elapsed <= round.saturating_mul(parts.max(1)) {
            hot.grown_and_ecn += 1;
        }
    }
}
