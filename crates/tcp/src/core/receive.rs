//! Payload: what is new, what is held, what the peer is told of it (RFC 9293, RFC 2018, RFC 2883).

use super::blocks::Place;
use super::few::Few;
use super::flow::{NO_COLD, YOUNG, flag};
use super::seq::{Seq, Span};
use super::state::State;
use super::wire::{Head, SACK_BLOCKS};
use super::{Keep, Segment, Stack, Verdict};
use crate::control::Control;
use crate::event::{Ready, Reason};
use crate::time::Time;

impl<C: Control> Stack<C> {
    /// The payload of an acceptable segment (RFC 9293, 3.10.7.4, seventh).
    pub(crate) fn on_data(
        &mut self,
        now: Time,
        slot: u32,
        segment: &Segment<'_>,
        head: &Head,
        keep: &mut impl Keep,
    ) -> Verdict {
        let hot = &self.flows[slot];
        let arrived = Span::new(head.seq, head.seq + segment.len);
        if !hot.state.can_receive() {
            return self.refuse(Reason::Over);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
        //# If such a host issues a CLOSE call while received data is still pending in the TCP connection, or
        //# if new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to show
        //# that data was lost (SHLD-3).
        if hot.has(flag::ORPHAN) && arrived.end.after(hot.rcv_nxt) {
            // Nobody will read it, and the peer must know (RFC 9293, 3.6.1, SHLD-3).
            self.abort(now, slot);
            return self.refuse(Reason::Over);
        }
        let fresh = Span::new(arrived.start.max(hot.rcv_nxt), arrived.end.min(hot.rcv_edge));
        let duplicate = self.first_duplicate(slot, arrived);
        self.note_duplicate(slot, duplicate);
        let hot = &mut self.flows[slot];
        if !duplicate.is_empty() {
            // The peer sends without need: the sooner it sees that, the better.
            hot.set(flag::ACK_NOW);
        }
        if fresh.is_empty() {
            // Old, or for a closed window.
            hot.set(flag::ACK_NOW);
            return self.refuse(Reason::Window);
        }
        let in_order = fresh.start == hot.rcv_nxt;
        let skip = fresh.start - arrived.start;
        let verdict = Verdict::Take { slot, at: fresh.start, skip, len: fresh.len() };
        if in_order && hot.cold == NO_COLD && keep.has_room(slot, fresh, false) {
            self.arrived_next(slot, segment, fresh.end);
            return verdict;
        }
        if !self.make_room(slot, fresh, keep) {
            self.flows[slot].set(flag::ACK_NOW);
            return self.refuse(Reason::Memory);
        }
        if in_order {
            let fills = self.is_holding(slot);
            self.advance_received(slot, fresh.end);
            if fills {
                // RFC 5681, 4.2: at once when a gap is filled, in part or whole.
                self.flows[slot].set(flag::ACK_NOW);
            } else {
                self.schedule_ack(slot, segment);
            }
            self.happen(slot, Ready::READABLE);
            return verdict;
        }
        // RFC 5681, 4.2: at once when a segment is out of order.
        self.flows[slot].set(flag::ACK_NOW);
        if !self.hold(slot, fresh) {
            return self.refuse(Reason::Memory);
        }
        verdict
    }

    /// The payload of a SYN in a simultaneous open waits until the connection is established
    /// (RFC 9293, 3.10.7.3, fifth). The peer sends again what there is no place for, and its FIN.
    pub(crate) fn hold_early(&mut self, slot: u32, len: u32, keep: &mut impl Keep) -> Verdict {
        let hot = &self.flows[slot];
        let start = hot.rcv_nxt;
        let early = Span::new(start, (start + len).min(hot.rcv_edge));
        if !keep.has_room(slot, early, true) || !self.hold(slot, early) {
            return self.refuse(Reason::Memory);
        }
        Verdict::Take { slot, at: start, skip: 0, len: early.len() }
    }

    /// What came before the connection was established can be read.
    pub(crate) fn deliver_early(&mut self, slot: u32) {
        if self.is_holding(slot) {
            let hot = &self.flows[slot];
            let before = hot.rcv_nxt;
            self.advance_received(slot, before);
            if self.flows[slot].rcv_nxt != before {
                self.happen(slot, Ready::READABLE);
            }
        }
    }

    /// Whether bytes can be kept, if need be instead of out-of-order ones of the same flow: those
    /// are pruned first, highest first, since the peer must keep them until they are
    /// acknowledged (RFC 2018, 8).
    fn make_room(&mut self, slot: u32, fresh: Span, keep: &mut impl Keep) -> bool {
        let behind_gap = fresh.start != self.flows[slot].rcv_nxt;
        while !keep.has_room(slot, fresh, behind_gap) {
            let hot = &self.flows[slot];
            if hot.cold == NO_COLD {
                return false;
            }
            let held = &mut self.colds[hot.cold].held;
            let Some(last) = self.ranges.last_place(held) else { return false };
            if self.ranges.get(held, last).is_none_or(|last| last.start.upto(fresh.start)) {
                return false;
            }
            self.ranges.remove(held, last);
            keep.evict(slot, self.ranges.last(held).map_or(hot.rcv_nxt, |last| last.end));
        }
        true
    }

    fn is_holding(&self, slot: u32) -> bool {
        let cold = self.flows[slot].cold;
        cold != NO_COLD && !self.colds[cold].held.is_empty()
    }

    /// All before `end` has arrived, and with it what is held right behind.
    fn advance_received(&mut self, slot: u32, end: Seq) {
        let hot = &mut self.flows[slot];
        hot.rcv_nxt = end;
        if hot.cold == NO_COLD {
            return;
        }
        let cold = &mut self.colds[hot.cold];
        while let Some(&first) = self.ranges.first(&cold.held)
            && first.start.upto(hot.rcv_nxt)
        {
            hot.rcv_nxt = hot.rcv_nxt.max(first.end);
            self.ranges.remove(&mut cold.held, Place::default());
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# Segments with higher beginning sequence numbers SHOULD be held for later processing (SHLD-31).
    /// Remembers an out-of-order range. Returns false if there is no place: ranges that
    /// were reported to the peer stay.
    fn hold(&mut self, slot: u32, fresh: Span) -> bool {
        let Some(cold) = self.warm_to_hold(slot) else { return false };
        let cold = &mut self.colds[cold];
        let (ranges, held) = (&mut self.ranges, &mut cold.held);
        let first = ranges.partition(held, |range| range.end.before(fresh.start));
        let mut merged = fresh;
        let touches = |range: &Span| range.start.upto(fresh.end);
        match ranges.get(held, first).copied().filter(touches) {
            None if ranges.insert(held, first, fresh) => {}
            None => return false,
            Some(range) => {
                merged = Span::new(fresh.start.min(range.start), fresh.end.max(range.end));
                let mut behind = ranges.next(held, first);
                while let Some(range) = ranges.get(held, behind).copied().filter(touches) {
                    merged.end = merged.end.max(range.end);
                    ranges.remove(held, behind);
                    behind = ranges.next(held, first);
                }
                if let Some(range) = ranges.get_mut(held, first) {
                    *range = merged;
                }
            }
        }
        let older = cold.young.iter().filter(|&&at| !merged.contains(Span::new(at, at + 1)));
        let mut young = Few::<Seq, YOUNG>::default();
        young.push(merged.start);
        older.take(YOUNG - 1).for_each(|&at| young.push(at));
        cold.young = young;
        true
    }

    /// The first contiguous part of a segment that is there already, below the cumulative
    /// acknowledgement or in a held range: only one is reported (RFC 2883, 4).
    fn first_duplicate(&self, slot: u32, arrived: Span) -> Span {
        let hot = &self.flows[slot];
        if arrived.start.before(hot.rcv_nxt) {
            return Span::new(arrived.start, arrived.end.min(hot.rcv_nxt));
        }
        let nothing = Span::new(arrived.start, arrived.start);
        if hot.cold == NO_COLD {
            return nothing;
        }
        let held = &self.colds[hot.cold].held;
        let first = self.ranges.partition(held, |range| range.end.upto(arrived.start));
        let touched = self.ranges.get(held, first).filter(|range| range.start.before(arrived.end));
        touched.map_or(nothing, |range| Span::new(arrived.start.max(range.start), arrived.end.min(range.end)))
    }

    /// Remembers what arrived twice, to report it once.
    pub(crate) fn note_duplicate(&mut self, slot: u32, span: Span) {
        let hot = &self.flows[slot];
        if span.is_empty() || !hot.has(flag::SACK) || !hot.state.is_synchronized() {
            return;
        }
        if let Some(cold) = self.warm_to_hold(slot) {
            self.colds[cold].duplicate = Some(span);
        }
    }

    /// The next bytes have arrived up to here, and nothing is held behind them.
    #[inline]
    pub(super) fn arrived_next(&mut self, slot: u32, segment: &Segment<'_>, upto: Seq) {
        self.flows[slot].rcv_nxt = upto;
        self.schedule_ack(slot, segment);
        self.happen(slot, Ready::READABLE);
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.3
    //# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of new data
    //# (where RMSS is the MSS specified by the TCP endpoint receiving the segments to be acknowledged, or the
    //# default value if not specified) (SHLD-19).
    /// An acknowledgement for data in order: at once for every second full segment (RFC 9293,
    /// SHLD-19) and at the start of a connection, else a little later.
    #[inline]
    fn schedule_ack(&mut self, slot: u32, segment: &Segment<'_>) {
        let hot = &mut self.flows[slot];
        if hot.quick_and_largest & 7 > 0 || self.profile.delayed_ack.is_zero() {
            return hot.set(flag::ACK_NOW);
        }
        let path = u32::from(self.own_mss(slot));
        let size = if segment.size > 0 { u32::from(segment.size) } else { segment.len };
        let full = size.clamp(path.min(536), path);
        let hot = &mut self.flows[slot];
        if hot.rcv_nxt - hot.rcv_acked >= 2 * full {
            hot.set(flag::ACK_NOW);
        }
    }

    /// The SACK blocks of the next segment: what arrived twice, then the range that grew last,
    /// then the others, youngest first (RFC 2018, 4; RFC 2883, 4).
    pub(crate) fn sack_blocks(&self, slot: u32) -> Few<Span, SACK_BLOCKS> {
        let mut blocks = Few::default();
        let hot = &self.flows[slot];
        if hot.cold == NO_COLD || !hot.has(flag::SACK) {
            return blocks;
        }
        let cold = &self.colds[hot.cold];
        // Three beside timestamps (RFC 2018, 3).
        let most = if hot.has(flag::TIMESTAMPS) { SACK_BLOCKS - 1 } else { SACK_BLOCKS };
        // On a link with tiny packets there has to be room for data, too.
        let most = most.min(usize::from(hot.mss.saturating_sub(24) / 8));
        if let Some(duplicate) = cold.duplicate.filter(|_| most > 0) {
            blocks.push(duplicate);
        }
        for &at in cold.young.iter().take_while(|_| !cold.held.is_empty()) {
            if blocks.len() >= most {
                break;
            }
            let place = self.ranges.partition(&cold.held, |range| range.end.upto(at));
            // What is below may have been received, or given up, meanwhile.
            let range = self.ranges.get(&cold.held, place).filter(|range| range.start.upto(at));
            if let Some(&range) = range {
                blocks.push(range);
            }
        }
        blocks
    }

    /// The window field of the next segment, and the right edge that it offers.
    ///
    /// The edge never moves left (RFC 9293, SHLD-14), also not by the rounding of the scale, and
    /// moves right in steps worth a segment only (RFC 9293, 3.8.6.2.2, MUST-39).
    #[inline]
    pub(crate) fn offered_window(&self, slot: u32, room: u32) -> (u16, Seq) {
        let hot = &self.flows[slot];
        let scale = hot.rcv_scale();
        let space = self.receive_space(slot);
        let promised = hot.rcv_edge.past(hot.rcv_nxt);
        // A quarter of what is left for everybody: a dry pool closes the window.
        let most = space.min(Self::window_share(room));
        let wanted = (hot.rcv_read + space).past(hot.rcv_nxt).min(most);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.2.2
        //# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
        // Half of what it can be at all: else a window that is closed in want never opens again.
        let step = (most / 2).min(u32::from(hot.mss));
        let grows = wanted > promised && wanted >= promised + step;
        let window = if grows { wanted >> scale } else { 0 };
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left
        //# (SHLD-14).
        let kept = promised.div_ceil(1 << scale);
        let field = window.max(kept).min(65_535);
        (field as u16, hot.rcv_nxt + (field << scale))
    }

    /// The program has read up to here. Has a window update sent if that makes a difference: a quarter of
    /// the buffer or, where the peer has used half of what it was offered, two segments (RFC 9293,
    /// 3.8.6.2.2, would have the edge move by a segment).
    #[inline]
    pub(crate) fn consumed(&mut self, now: Time, slot: u32, upto: Seq, room: u32) {
        let from = std::mem::replace(&mut self.flows[slot].rcv_read, upto);
        self.was_read(now, slot, (from, upto), room);
        let hot = &self.flows[slot];
        if !matches!(hot.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        let space = self.receive_space(slot);
        let before = hot.rcv_edge.past(hot.rcv_nxt);
        let quarter = space / 4;
        let is_short = before < (space / 2).max(u32::from(hot.mss));
        if !is_short && (upto + space).past(hot.rcv_edge) < quarter {
            return;
        }
        let most = space.min(Self::window_share(room));
        let step = if is_short { (2 * u32::from(hot.mss)).min(most / 2) } else { quarter };
        let (_, edge) = self.offered_window(slot, room);
        let hot = &mut self.flows[slot];
        let gained = edge.past(hot.rcv_edge);
        if gained > 0 && gained >= step {
            hot.set(flag::ACK_NOW);
            self.settle(now, slot);
        }
    }
}
