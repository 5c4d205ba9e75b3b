//! Builds segments and notes what was sent.

use super::flow::{NO_COLD, TailProbe, ecn, flag};
use super::listen::timestamp;
use super::seq::{Seq, Span};
use super::state::State;
use super::transmit::{Plan, data_of};
use super::wire::{Flags, Head, Timestamps};
use super::{Emit, Full, Outgoing, Reply, Stack};
use crate::config::Offers;
use crate::control::Control;
use crate::time::{Deadline, Time, micros};

impl<C: Control> Stack<C> {
    /// Emits segments, first those that belong to no flow, then a frame of each flow in turn:
    /// blocks go to flows that have waited for one before others take them. `room` is what all
    /// flows together can still receive. Returns whether there is more.
    pub(crate) fn output(&mut self, now: Time, room: u32, emit: &mut impl Emit) -> bool {
        while let Some(&Reply { ref tuple, ref head, marking }) = self.replies.front() {
            let data = Span::new(head.seq, head.seq);
            let segment = Outgoing { tuple, slot: u32::MAX, head, data, size: 0, marking };
            if emit.segment(&segment).is_err() {
                return true;
            }
            self.replies.pop_front();
        }
        loop {
            let waited = self.next_waiting();
            let Some(slot) = waited.or_else(|| self.ready.pop()) else { return false };
            if !self.flows.is_taken(slot) {
                continue;
            }
            let done = match self.owes_ack_alone(slot) {
                true => self.acknowledge(now, slot, room, emit),
                false => self.emit_one(now, slot, room, emit),
            };
            if done.is_err() {
                let queue = if waited.is_some() { &mut self.waiting } else { &mut self.ready };
                queue.push_first(slot);
                return true;
            }
        }
    }

    /// A flow that has waited for a block, once there is one. It may have ended meanwhile, or have
    /// nothing to send.
    fn next_waiting(&mut self) -> Option<u32> {
        if self.serves_waiting() { self.waiting.pop() } else { None }
    }

    pub(crate) fn serves_waiting(&self) -> bool {
        !self.waiting.is_empty() && !self.colds.is_full()
    }

    fn emit_one(&mut self, now: Time, slot: u32, room: u32, emit: &mut impl Emit) -> Result<(), Full> {
        let mut plan = self.plan(slot);
        if plan == Plan::Starved && self.warm(slot).is_some() {
            plan = self.plan(slot);
        }
        let hot = &self.flows[slot];
        let (window, edge) = self.offered_window(slot, room);
        let mut head = Head { ack: hot.rcv_nxt, flags: Flags::ACK, window, ..Head::default() };
        head.seq = hot.snd_nxt;
        let mut data = Span::new(hot.snd_nxt, hot.snd_nxt);
        match plan {
            Plan::Nothing | Plan::Starved => {
                self.settle(now, slot);
                return Ok(());
            }
            Plan::Syn => self.syn_head(slot, &mut head),
            Plan::Again(span) | Plan::New(span) | Plan::Search(span) => {
                head.seq = span.start;
                data = data_of(span, hot.snd_end);
                if span.end.after(hot.snd_end) {
                    head.flags = head.flags.with(Flags::FIN);
                }
                if data.end == hot.snd_end {
                    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
                    //# If PUSH flags are not implemented, then the sending TCP peer: (1) MUST NOT buffer data
                    //# indefinitely (MUST-60), and (2) MUST set the PSH bit in the last buffered segment
                    //# (i.e., when there is no more queued data to be sent) (MUST-61).
                    // MUST-60 of RFC 9293: the last of what is queued is pushed.
                    head.flags = head.flags.with(Flags::PSH);
                }
            }
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
            //# An implementation SHOULD send a keep-alive segment with no data (SHLD-12); however, it MAY be
            //# configurable to send a keep-alive segment containing one garbage octet (MAY-6), for
            //# compatibility with erroneous TCP implementations.
            // A number that the peer has acknowledged: it must answer (RFC 9293, 3.8.4 and 3.8.6.1),
            // and nothing goes beyond its window.
            Plan::Probe => head.seq = hot.snd_una - 1,
            Plan::Ack => {}
        }
        let first = plan == Plan::Syn && hot.state == State::SynSent;
        if hot.has(flag::TIMESTAMPS) || first && self.offers_of(slot).timestamps {
            let value = timestamp(now, hot.ts_offset);
            head.timestamps = Some(Timestamps { value, echo: hot.ts_recent });
        }
        if plan != Plan::Syn && hot.cold != NO_COLD {
            head.sacks = self.sack_blocks(slot);
        }
        let is_cut = !data.is_empty() && !matches!(plan, Plan::Search(_));
        let size = if is_cut { self.payload_size(slot) } else { 0 };
        let size = if is_cut && data.len() > size { size as u16 } else { 0 };
        let mut marking = self.choices.of(slot).marking;
        if hot.has_ecn(ecn::ON) && plan != Plan::Syn {
            if hot.has_ecn(ecn::ECHO) {
                head.flags = head.flags.with(Flags::ECE);
            }
            // RFC 3168, 6.1.2 and 6.1.5: ECT(0), but not what is sent again, nor what carries nothing.
            if matches!(plan, Plan::New(_) | Plan::Search(_)) && !data.is_empty() {
                marking.traffic_class |= 2;
                if hot.has_ecn(ecn::REDUCED) {
                    head.flags = head.flags.with(Flags::CWR);
                }
            }
        }
        emit.segment(&Outgoing { tuple: &hot.tuple, slot, head: &head, data, size, marking })?;
        self.sent(now, slot, plan, edge);
        self.settle(now, slot);
        Ok(())
    }

    /// What our next SYN offers.
    fn offers_of(&self, slot: u32) -> Offers {
        let offers = self.offers;
        match self.flows[slot].backoff >= offers.plain_repeat {
            false => offers,
            true => Offers { scale: false, sack: false, timestamps: false, ..offers },
        }
    }

    fn syn_head(&self, slot: u32, head: &mut Head) {
        let hot = &self.flows[slot];
        let first = hot.state == State::SynSent;
        head.seq = hot.snd_una;
        head.flags = if first { Flags::SYN } else { Flags::SYN.with(Flags::ACK) };
        head.window = self.first_window() as u16;
        let offers = self.offers_of(slot);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.2
        //# This field may be sent in the initial connection request (i.e., in segments with the SYN control
        //# bit set) and MUST NOT be sent in other segments (MUST- 65).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
        //# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
        //# TCP implementations SHOULD send an MSS Option in every SYN segment when its receive MSS differs
        //# from the default 536 for IPv4 or 1220 for IPv6 (SHLD-5), and MAY send it always (MAY-3).
        if first && hot.backoff < offers.ecn {
            head.flags = head.flags.with(Flags::ECE).with(Flags::CWR);
        } else if !first && hot.has_ecn(ecn::ON) {
            head.flags = head.flags.with(Flags::ECE);
        }
        head.mss = offers.mss.then(|| self.own_mss(slot));
        // After a SYN of the peer only what it offered.
        head.scale = (first && offers.scale || hot.scales != 0).then(|| self.window_scale());
        head.sack_permitted = first && offers.sack || hot.has(flag::SACK);
        if first {
            head.ack = Seq(0);
        }
    }

    /// Notes that a segment is on its way.
    fn sent(&mut self, now: Time, slot: u32, plan: Plan, edge: Seq) {
        if plan == Plan::Syn {
            let at = now.plus(self.rto(slot));
            let hot = &mut self.flows[slot];
            hot.clear(flag::SYN_NOW);
            hot.send_at = Deadline::at(at);
            if hot.state == State::SynSent {
                return;
            }
        } else {
            self.flows[slot].rcv_edge = edge;
        }
        let hot = &mut self.flows[slot];
        hot.acknowledged();
        if hot.cold != NO_COLD {
            self.colds[hot.cold].duplicate = None;
        }
        match plan {
            Plan::New(span) => self.sent_new(now, slot, span),
            Plan::Search(span) => {
                self.sent_new(now, slot, span);
                self.sent_search(slot, span);
            }
            Plan::Again(span) => self.sent_again(now, slot, span),
            Plan::Probe => self.flows[slot].clear(flag::PROBE),
            Plan::Nothing | Plan::Starved | Plan::Syn | Plan::Ack => {}
        }
    }

    fn sent_new(&mut self, now: Time, slot: u32, span: Span) {
        self.widen(now, slot);
        let rto = self.rto(slot);
        let Some(cold) = self.warm(slot) else { return self.sent_single(now, slot, span) };
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[cold];
        if hot.snd_una == hot.snd_nxt {
            cold.progress_at = now;
        }
        hot.snd_nxt = span.end;
        if span.start.before(hot.snd_end) {
            hot.clear_ecn(ecn::REDUCED);
        }
        // RFC 9293, 3.8.6.2.1: the override is for one segment.
        hot.clear(flag::PUSH);
        cold.flight.record(&mut self.records, span, now);
        let flight = cold.flight.in_flight();
        let limited = flight + u32::from(hot.mss) > hot.window.congestion;
        cold.usage.sent(hot.snd_una, hot.snd_nxt, flight, limited);
        if self.lasting[slot as usize].pipe.sent(now, flight, &hot.window, hot.srtt) {
            let least = self.control.start(hot.mss.into(), false).congestion;
            hot.window.decay(least);
        }
        if let Some(reduction) = &mut cold.reduction {
            reduction.sent(span.len());
        }
        cold.pace.sent(now, span.len(), &hot.window, hot.srtt, hot.mss);
        // RFC 6298, 5.1.
        cold.rto_at.get_or_insert(now.plus(rto));
        if hot.take(flag::TAIL_PROBE) {
            cold.tail_probe = Some(TailProbe { end: hot.snd_nxt, is_retransmission: false });
            cold.rto_at = Some(now.plus(rto));
            cold.tail_at = None;
        } else {
            cold.schedule_tail_probe(hot, now, micros(self.profile.rto_min));
        }
    }

    fn sent_again(&mut self, now: Time, slot: u32, span: Span) {
        let rto = self.rto(slot);
        let size = self.payload_size(slot).max(1);
        let lasting = &mut self.lasting[slot as usize];
        lasting.again += u64::from(span.len());
        lasting.segments_again = lasting.segments_again.saturating_add(span.len().div_ceil(size));
        if self.flows[slot].cold == NO_COLD {
            return self.restart_single(now, slot);
        }
        self.repeats_search(slot, span);
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        cold.flight.record_again(&mut self.records, span, now);
        if let Some(undo) = &mut cold.undo {
            undo.sent_again(span, timestamp(now, hot.ts_offset));
        }
        if let Some(reduction) = &mut cold.reduction {
            reduction.sent(span.len());
        }
        cold.pace.sent(now, span.len(), &hot.window, hot.srtt, hot.mss);
        hot.clear(flag::FORCE);
        if span.start == hot.snd_una && !cold.by_timeout {
            // The acknowledgement that the timer waits for is of this one.
            cold.rto_at = Some(now.plus(rto));
        }
        cold.rto_at.get_or_insert(now.plus(rto));
        if hot.take(flag::TAIL_PROBE) {
            cold.tail_probe = Some(TailProbe { end: hot.snd_nxt, is_retransmission: true });
            // RFC 8985, 7.3: the retransmission timer begins anew.
            cold.rto_at = Some(now.plus(rto));
            cold.tail_at = None;
        }
    }
}
