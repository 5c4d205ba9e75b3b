//! What a received segment changes, in the order of RFC 9293, 3.10.7.

use std::hint::black_box;

use arrayvec::ArrayVec;

use super::challenges;
use super::flow::{NO_COLD, flag};
use super::handshake::is_older;
use super::index::Kind;
use super::seq::{Seq, Span};
use super::state::{State, Step};
use super::tuple::Tuple;
use super::wire::{Flags, Head};
use super::{Keep, Segment, Stack, Verdict};
use crate::control::Control;
use crate::event::{Failure, Ready, Reason};
use crate::time::{Deadline, Time};

/// Segments that go through the stages together.
pub(crate) const BURST: usize = 64;

pub(crate) type Burst<'a> = ArrayVec<Segment<'a>, BURST>;

/// Of each segment of a burst the record that probably is its own.
type Likely = ArrayVec<Option<(Kind, u32)>, BURST>;

impl<C: Control> Stack<C> {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# o In general, the processing of received segments MUST be implemented to aggregate ACK segments
    //# whenever possible (MUST-58).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
    //# For example, if the TCP endpoint is processing a series of queued segments, it MUST process them all
    //# before sending any ACK segments (MUST-59).
    /// Takes segments. In stages, so that cache misses of different flows overlap: a stage does so
    /// little that the processor is at work on many segments of it at once.
    pub(crate) fn input(&mut self, now: Time, burst: &Burst<'_>, keep: &mut impl Keep) {
        self.resume(now);
        let mut likely = ArrayVec::new();
        if burst.len() > 1 {
            self.look_up(burst, &mut likely, keep);
        }
        for (index, segment) in burst.iter().enumerate() {
            // A segment alone probably is of the same flow as the one before.
            let likely = likely.get(index).copied().unwrap_or(Some((Kind::Flow, self.last)));
            // One before it in the burst may have opened or closed a connection.
            let record = likely
                .filter(|&(kind, slot)| self.is_of(kind, slot, &segment.tuple))
                .or_else(|| self.find(self.secret.hash(&segment.tuple), &segment.tuple));
            if let Some((Kind::Flow, slot)) = record {
                self.last = slot;
                if let Some(verdict) = self.on_predicted(now, slot, segment, keep) {
                    keep.verdict(index, verdict);
                    continue;
                }
            }
            let verdict = self.segment(now, index, segment, record, keep);
            keep.verdict(index, verdict);
        }
    }

    /// Finds the likely records of a burst, and loads them.
    fn look_up(&self, burst: &Burst<'_>, likely: &mut Likely, keep: &mut impl Keep) {
        let mut hashes = ArrayVec::<u64, BURST>::new();
        for (at, segment) in burst.iter().enumerate() {
            // Of neighbours many are of one connection.
            let again = at.checked_sub(1).filter(|&before| burst[before].tuple == segment.tuple);
            hashes.push(again.map_or_else(|| self.secret.hash(&segment.tuple), |before| hashes[before]));
        }
        likely.extend(hashes.iter().map(|&hash| self.index.likely(hash)));
        for &(kind, slot) in likely.iter().flatten() {
            if kind == Kind::Flow {
                self.touch(slot);
                keep.touch(slot);
            }
        }
    }

    /// Loads what a segment of this flow needs, without waiting for it.
    fn touch(&self, slot: u32) {
        black_box((self.flows[slot].state, self.flows[slot].owner));
        black_box(self.flows.generation(slot));
        black_box((self.happened.contains(slot), self.ready.contains(slot)));
    }

    /// Whether this is the record of a tuple, as the index has it.
    #[inline]
    fn is_of(&self, kind: Kind, slot: u32, tuple: &Tuple) -> bool {
        match kind {
            Kind::Flow => {
                let hot = self.flows.get(slot);
                hot.is_some_and(|hot| hot.tuple == *tuple && hot.state != State::Closed)
            }
            Kind::Syn => self.syns.is_taken(slot) && self.syns[slot].tuple == *tuple,
            Kind::Wait => self.waits.is_taken(slot) && self.wait_tuple(slot) == *tuple,
        }
    }

    pub(crate) fn find(&self, hash: u64, tuple: &Tuple) -> Option<(Kind, u32)> {
        self.index.find(hash, |kind, slot| self.is_of(kind, slot, tuple))
    }

    /// Whatever a segment is. Apart from the short way, which it would make longer.
    #[inline(never)]
    fn segment(
        &mut self,
        now: Time,
        index: usize,
        segment: &Segment<'_>,
        record: Option<(Kind, u32)>,
        keep: &mut impl Keep,
    ) -> Verdict {
        let Some(head) = &Head::parse(segment.header) else { return self.refuse(Reason::Malformed) };
        match record {
            Some((Kind::Flow, slot)) => self.on_flow(now, slot, segment, head, keep),
            Some((Kind::Syn, slot)) => self.on_half_open(now, slot, segment, head, keep),
            Some((Kind::Wait, slot)) => self.on_wait(now, slot, head, segment.len),
            None => self.on_stranger(now, segment, head, index, keep),
        }
    }

    /// A segment without a connection: LISTEN and CLOSED (RFC 9293, 3.10.7.1 and 3.10.7.2).
    fn on_stranger(
        &mut self,
        now: Time,
        segment: &Segment<'_>,
        head: &Head,
        index: usize,
        keep: &mut impl Keep,
    ) -> Verdict {
        let reset = head.flags.has(Flags::RST);
        let listener = if reset { None } else { self.listener_for(&segment.tuple) };
        let (answers, opens) = (head.flags.has(Flags::ACK), head.flags.has(Flags::SYN));
        match listener {
            Some(listener) if opens && !answers => {
                return self.on_syn(now, segment.tuple, head, listener, None);
            }
            Some(listener) if answers && !opens => {
                if let Some(syn) = self.of_cookie(now, &segment.tuple, head, listener) {
                    return match self.complete(now, &syn, keep) {
                        Some(flow) => self.on_flow(now, flow, segment, head, keep),
                        None => self.refuse(Reason::Backlog),
                    };
                }
            }
            _ => {}
        }
        if keep.pass_on(index) {
            return Verdict::Nothing;
        }
        if reset {
            return self.refuse(Reason::NoFlow);
        }
        if listener.is_some() && !answers {
            // RFC 9293, 3.10.7.2, fourth: neither a SYN nor an ACK.
            return self.refuse(Reason::NoAck);
        }
        self.reply(segment.tuple, reset_for(head, segment.len));
        self.refuse(Reason::NoFlow)
    }

    /// A segment of a flow.
    pub(crate) fn on_flow(
        &mut self,
        now: Time,
        slot: u32,
        segment: &Segment<'_>,
        head: &Head,
        keep: &mut impl Keep,
    ) -> Verdict {
        let verdict = match self.flows[slot].state {
            State::SynSent => {
                let verdict = self.on_syn_sent(now, slot, head);
                let hot = &self.flows[slot];
                keep.acknowledged(slot, hot.snd_una);
                if hot.state.is_synchronized() {
                    // RFC 9293, 3.10.7.3, fourth: what came with the SYN counts.
                    let behind = Head { seq: head.seq + 1, ..*head };
                    self.on_text(now, slot, segment, &behind, keep)
                } else if hot.state == State::SynReceived && segment.len > 0 {
                    self.hold_early(slot, segment.len, keep)
                } else {
                    verdict
                }
            }
            State::TimeWait => self.on_flow_wait(now, slot, head, segment.len),
            _ => self.checks(now, slot, segment, head, keep),
        };
        self.settle(now, slot);
        verdict
    }

    /// The checks of RFC 9293, 3.10.7.4, one after the other.
    fn checks(
        &mut self,
        now: Time,
        slot: u32,
        segment: &Segment<'_>,
        head: &Head,
        keep: &mut impl Keep,
    ) -> Verdict {
        let hot = &self.flows[slot];
        // In a simultaneous open the peer's SYN comes again, now with an ACK.
        let opens = Flags::SYN.with(Flags::ACK);
        let without_syn;
        let head = if hot.state == State::SynReceived && head.flags.has(opens) && head.seq + 1 == hot.rcv_nxt
        {
            without_syn = Head { seq: head.seq + 1, flags: Flags::ACK, ..*head };
            &without_syn
        } else {
            head
        };
        let reset = head.flags.has(Flags::RST);
        if hot.has(flag::TIMESTAMPS) && !reset {
            match head.timestamps {
                None => return self.refuse(Reason::NoTimestamp),
                Some(stamps) if is_older(stamps, hot.ts_recent) => {
                    self.challenge(now, slot, segment.len > 0);
                    return self.refuse(Reason::Timestamp);
                }
                Some(_) => {}
            }
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.4
        //# A TCP receiver MUST process the RST and URG fields of all incoming segments, even when the receive
        //# window is zero (MUST-66).
        if reset {
            return self.on_reset(now, slot, head);
        }
        let hot = &self.flows[slot];
        if !self.is_acceptable(slot, head, segment.len) {
            // What lies beyond the window was not received, and must not be reported.
            let end = (head.seq + segment.len).min(hot.rcv_nxt);
            self.note_duplicate(slot, Span::new(head.seq, end));
            self.challenge(now, slot, segment.len > 0);
            return self.refuse(Reason::Window);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# RFC 5961 recommends that in these synchronized states, if the SYN bit is set, irrespective of the
        //# sequence number, TCP endpoints MUST send a "challenge ACK" to the remote peer:
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# o After sending the acknowledgment, TCP implementations MUST drop the unacceptable segment and
        //# stop processing further.
        if head.flags.has(Flags::SYN) {
            // RFC 5961, 4.2.
            self.challenge(now, slot, false);
            return self.refuse(Reason::Challenged);
        }
        if !head.flags.has(Flags::ACK) {
            return self.refuse(Reason::NoAck);
        }
        // Before anything of the segment counts: a forged one may have any timestamp, and would make
        // those of the true peer old.
        if let Err(reason) = self.on_ack(now, slot, head, segment.len, keep) {
            return self.refuse(reason);
        }
        let hot = &mut self.flows[slot];
        if hot.state == State::Closed {
            return Verdict::Nothing;
        }
        if let Some(stamps) = head.timestamps
            && hot.has(flag::TIMESTAMPS)
            && head.seq.upto(hot.rcv_acked)
        {
            // RFC 7323, 4.3 (2).
            hot.ts_recent = stamps.value;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
        //# As long as the receiving TCP peer continues to send acknowledgments in response to the probe
        //# segments, the sending TCP peer MUST allow the connection to stay open (MUST-37).
        hot.probes = 0;
        self.on_marks(slot, segment, head);
        self.touch_keep_alive(now, slot);
        self.on_text(now, slot, segment, head, keep)
    }

    /// Payload and FIN (RFC 9293, 3.10.7.4, seventh and eighth).
    fn on_text(
        &mut self,
        now: Time,
        slot: u32,
        segment: &Segment<'_>,
        head: &Head,
        keep: &mut impl Keep,
    ) -> Verdict {
        let verdict =
            if segment.len > 0 { self.on_data(now, slot, segment, head, keep) } else { Verdict::Nothing };
        if self.flows[slot].state != State::Closed {
            self.on_fin(now, slot, segment.len, head);
        }
        verdict
    }

    /// Whether a segment lies in the window (RFC 9293, 3.4, MUST-66 with a window of zero).
    ///
    /// Three more are acceptable than the table allows: one that begins at the right edge and adds
    /// nothing to it, since the ACKs of a peer that has filled the window begin there; one
    /// without data from before the last acknowledgement that was sent, since it was overtaken; and
    /// the peer's FIN once more, since it may acknowledge ours.
    fn is_acceptable(&self, slot: u32, head: &Head, len: u32) -> bool {
        let hot = &self.flows[slot];
        let edge = hot.rcv_edge.max(hot.rcv_nxt);
        let fin = u32::from(head.flags.has(Flags::FIN));
        let end = head.seq + len + fin;
        if end == head.seq {
            return hot.rcv_acked.upto(end) && head.seq.upto(edge);
        }
        let repeated = len == 0 && end == hot.rcv_nxt && hot.has(flag::FIN_RECEIVED);
        repeated || end.after(hot.rcv_nxt) && head.seq.upto(edge)
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5.3
    //# TCP implementations SHOULD allow a received RST segment to include data (SHLD-2).
    /// RFC 5961, 3.2: only an RST at exactly the next sequence number resets; another one inside the
    /// window is challenged.
    fn on_reset(&mut self, now: Time, slot: u32, head: &Head) -> Verdict {
        let hot = &self.flows[slot];
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# 2) If the RST bit is set and the sequence number exactly matches the next expected sequence number
        //# (RCV.NXT), then TCP endpoints MUST reset the connection in the manner prescribed below according
        //# to the connection state.
        if head.seq == hot.rcv_nxt {
            let refused = hot.state == State::SynReceived;
            self.end(slot, Some(if refused { Failure::Refused } else { Failure::Reset }));
            return self.refuse(Reason::Over);
        }
        if head.seq.before(hot.rcv_nxt) || !head.seq.before(hot.rcv_edge) {
            return self.refuse(Reason::Window);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# 3) If the RST bit is set and the sequence number does not exactly match the next expected sequence
        //# value, yet is within the current receive window, TCP endpoints MUST send an acknowledgment
        //# (challenge ACK):
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# After sending the challenge ACK, TCP endpoints MUST drop the unacceptable segment and stop
        //# processing the incoming packet further.
        self.challenge(now, slot, false);
        self.refuse(Reason::Challenged)
    }

    /// Has an ACK sent that says where this endpoint is. Limited, unless the segment carries data:
    /// two endpoints that disagree would answer each other for ever, but not with data.
    pub(crate) fn challenge(&mut self, now: Time, slot: u32, has_data: bool) {
        let most = self.challenges_now();
        let challenges = &mut self.lasting[slot as usize].challenges;
        if has_data || challenges.may_answer(now, most) {
            self.flows[slot].set(flag::ACK_NOW);
        }
    }

    /// How many there may be in this second.
    pub(crate) fn challenges_now(&mut self) -> u64 {
        challenges::BASE + self.secret.random() % challenges::SPREAD
    }

    /// The FIN bit (RFC 9293, 3.10.7.4, eighth).
    fn on_fin(&mut self, now: Time, slot: u32, len: u32, head: &Head) {
        let hot = &self.flows[slot];
        if head.flags.has(Flags::FIN) && hot.state.can_receive() {
            let at = head.seq + len;
            if at.after(hot.rcv_nxt) {
                if at.upto(hot.rcv_edge)
                    && let Some(cold) = self.warm_to_hold(slot)
                {
                    self.colds[cold].fin_at = Some(at);
                }
            } else if at == hot.rcv_nxt {
                return self.fin_received(now, slot);
            }
        }
        let hot = &self.flows[slot];
        if hot.cold != NO_COLD && self.colds[hot.cold].fin_at == Some(hot.rcv_nxt) {
            self.fin_received(now, slot);
        } else if head.flags.has(Flags::FIN) {
            // One that came before, or came too early: the peer waits for an answer.
            self.flows[slot].set(flag::ACK_NOW);
        }
    }

    /// All bytes and the FIN behind them have arrived.
    fn fin_received(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        hot.rcv_nxt = hot.rcv_nxt + 1;
        hot.rcv_edge = hot.rcv_edge.max(hot.rcv_nxt);
        hot.set(flag::FIN_RECEIVED | flag::ACK_NOW);
        hot.state = hot.state.after(Step::FinReceived);
        if hot.cold != NO_COLD {
            self.colds[hot.cold].fin_at = None;
            self.ranges.clear(&mut self.colds[hot.cold].held);
        }
        if self.flows[slot].state == State::TimeWait {
            self.flows[slot].life_at = Deadline::at(now.after(self.profile.time_wait));
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6
        //# If the local TCP connection is closed by the remote side due to a FIN or RST received from the
        //# remote side, then the local application MUST be informed whether it closed normally or was aborted
        //# (MUST-12).
        self.happen(slot, Ready::END);
        self.happen(slot, Ready::READABLE);
    }
}

/// The RST that answers a segment (RFC 9293, 3.10.7.1).
fn reset_for(head: &Head, len: u32) -> Head {
    if head.flags.has(Flags::ACK) {
        return Head { seq: head.ack, flags: Flags::RST, ..Head::default() };
    }
    let syn = u32::from(head.flags.has(Flags::SYN));
    let fin = u32::from(head.flags.has(Flags::FIN));
    let flags = Flags::RST.with(Flags::ACK);
    Head { seq: Seq(0), ack: head.seq + (len + syn + fin), flags, ..Head::default() }
}
