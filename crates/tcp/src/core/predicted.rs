//! The segment that everybody expects, and its acknowledgement: the next bytes of a peer to which nothing
//! else is owed ("header prediction": V. Jacobson, 4BSD TCP header prediction, 1990).
//!
//! A short way to what `input` and `output` do with them, and nothing that they do not do. Whatever is
//! unusual goes there.

use super::flow::{ecn, flag};
use super::handshake::is_older;
use super::listen::timestamp;
use super::seq::Span;
use super::state::State;
use super::wire::{Plain, Timestamps};
use super::{Emit, Full, Keep, Segment, Stack, Verdict};
use crate::control::Control;
use crate::time::Time;

/// With one of these a flow takes the long way.
const UNUSUAL: u16 = flag::ORPHAN | flag::KEEP_ALIVE | flag::PROBE;

impl<C: Control> Stack<C> {
    /// Takes a segment that is expected; `None` if it is not, and nothing is changed.
    #[inline]
    pub(super) fn on_predicted(
        &mut self,
        now: Time,
        slot: u32,
        segment: &Segment<'_>,
        keep: &mut impl Keep,
    ) -> Option<Verdict> {
        let head = Plain::parse(segment.header).filter(|_| !segment.marked)?;
        let hot = &mut self.flows[slot];
        let quiet = hot.state == State::Established && hot.flags & UNUSUAL == 0 && hot.is_quiet();
        let fresh = Span::new(head.seq, head.seq + segment.len);
        let next = head.seq == hot.rcv_nxt && head.ack == hot.snd_una && segment.len > 0;
        let beyond = fresh.end.after(hot.rcv_edge);
        if !quiet || !next || beyond || hot.snd_wl1.after(head.seq) {
            return None;
        }
        let ts_recent = match hot.has(flag::TIMESTAMPS) {
            true => head.timestamps.filter(|&stamps| !is_older(stamps, hot.ts_recent))?.value,
            false => 0,
        };
        if !keep.has_room(slot, fresh, false) {
            return None;
        }
        if hot.rcv_acked == head.seq {
            // RFC 7323, 4.3 (2).
            hot.ts_recent = ts_recent;
        }
        hot.probes = 0;
        hot.offered(u32::from(head.window) << hot.snd_scale());
        hot.snd_wl1 = head.seq;
        self.arrived_next(slot, segment, fresh.end);
        let hot = &self.flows[slot];
        if hot.has(flag::ACK_NOW) {
            self.ready.push(slot);
        } else if !hot.ack_at.is_set() {
            self.settle(now, slot);
        }
        Some(Verdict::Take { slot, at: fresh.start, skip: 0, len: segment.len })
    }

    /// Whether a flow has nothing to send but an acknowledgement, and nothing to wait for after it.
    #[inline]
    pub(super) fn owes_ack_alone(&self, slot: u32) -> bool {
        let hot = &self.flows[slot];
        hot.state == State::Established
            && hot.flags & (UNUSUAL | flag::ACK_NOW) == flag::ACK_NOW
            && !hot.has_ecn(ecn::ECHO)
            && hot.is_quiet()
    }

    /// Sends that acknowledgement.
    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        now: Time,
        slot: u32,
        room: u32,
        emit: &mut impl Emit,
    ) -> Result<(), Full> {
        let (window, edge) = self.offered_window(slot, room);
        let hot = &mut self.flows[slot];
        let timestamps = hot
            .has(flag::TIMESTAMPS)
            .then(|| Timestamps { value: timestamp(now, hot.ts_offset), echo: hot.ts_recent });
        let head = Plain { seq: hot.snd_nxt, ack: hot.rcv_nxt, window, timestamps };
        emit.acknowledgement(&hot.tuple, &head, self.choices.of(slot).marking)?;
        hot.rcv_edge = edge;
        hot.acknowledged();
        Ok(())
    }
}
