//! What a flow may send next (RFC 9293, 3.8.6; RFC 5681; RFC 8985).

use super::Stack;
use super::flow::{Cold, Hot, NO_COLD, flag};
use super::seq::{Seq, Span};
use super::state::State;
use crate::control::Control;

/// The next segment of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// There is none.
    Nothing,
    /// There would be more data, but all blocks for outstanding data are taken.
    Starved,
    Syn,
    /// Bytes again; the span may end with the FIN.
    Again(Span),
    /// New bytes; the span may end with the FIN.
    New(Span),
    /// New bytes in one segment that is larger than others.
    Search(Span),
    /// The last byte's number once more, to have the peer answer.
    Probe,
    Ack,
}

impl<C: Control> Stack<C> {
    #[inline]
    pub(crate) fn plan(&self, slot: u32) -> Plan {
        let hot = &self.flows[slot];
        if hot.has(flag::SYN_NOW) {
            return Plan::Syn;
        }
        if !hot.state.is_synchronized() {
            // Only a challenge is owed before the handshake is over.
            let answers = hot.state == State::SynReceived && hot.has(flag::ACK_NOW);
            return if answers { Plan::Ack } else { Plan::Nothing };
        }
        let data = if hot.snd_una == hot.snd_limit() { Plan::Nothing } else { self.plan_data(slot, hot) };
        if !matches!(data, Plan::Nothing | Plan::Starved) {
            return data;
        }
        if hot.has(flag::PROBE) {
            return Plan::Probe;
        }
        if hot.has(flag::ACK_NOW) { Plan::Ack } else { data }
    }

    fn plan_data(&self, slot: u32, hot: &Hot) -> Plan {
        let cold = (hot.cold != NO_COLD).then(|| &self.colds[hot.cold]);
        let size = self.payload_size(slot);
        if Self::is_single(hot) {
            return self.plan_single(slot, hot, size);
        }
        if let Some(cold) = cold {
            if cold.pace.held_until().is_some() && !hot.has(flag::FORCE) && !hot.has(flag::TAIL_PROBE) {
                return Plan::Nothing;
            }
            if let Some(lost) = cold.flight.first_lost(&self.records) {
                let room = hot.window.congestion.saturating_sub(cold.flight.in_flight());
                if room < size && !hot.has(flag::FORCE) {
                    // Nothing new before it is repaired.
                    return Plan::Nothing;
                }
                let len = lost.len().min(self.burst(room.max(size), size));
                return Plan::Again(Span::new(lost.start, lost.start + len));
            }
            if hot.has(flag::TAIL_PROBE)
                && self.plan_new(slot, hot, Some(cold), size) == Plan::Nothing
                && let Some(last) = cold.flight.last(&self.records)
            {
                // RFC 8985, 7.3: the last segment, if there is no new one.
                let len = last.span.len().min(size);
                return Plan::Again(Span::new(last.span.end - len, last.span.end));
            }
        }
        if let Some(plan) = cold.and_then(|cold| self.plan_search(slot, hot, cold, size)) {
            return plan;
        }
        match self.plan_new(slot, hot, cold, size) {
            Plan::New(span) if hot.cold == NO_COLD && self.colds.is_full() => {
                Plan::New(Span::new(span.start, span.end.min(span.start + size)))
            }
            plan => plan,
        }
    }

    /// New bytes: what the peer's window, the congestion window, the avoidance of silly windows
    /// and Nagle's algorithm allow.
    fn plan_new(&self, slot: u32, hot: &Hot, cold: Option<&Cold<C::Memory>>, size: u32) -> Plan {
        let queued = hot.snd_end.past(hot.snd_nxt);
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# However, a sending TCP peer MUST be robust against window shrinking, which may cause the "usable
        //# window" (see Section 3.8.6.2.1) to become negative (MUST-34).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# If this happens, the sender SHOULD NOT send new data (SHLD-15), but SHOULD retransmit normally the
        //# old unacknowledged data between SND.UNA and SND.UNA+SND.WND (SHLD-16).
        let usable = hot.snd_edge().past(hot.snd_nxt);
        let flying = cold.map_or(0, |cold| emulated_flight(hot, cold));
        let mut room = hot.window.congestion.saturating_sub(flying);
        if flying == 0 || hot.has(flag::TAIL_PROBE) {
            // One segment always, or nothing would ever be acknowledged.
            room = room.max(size);
        }
        let allowed = usable.min(room);
        let all = queued <= allowed;
        // The FIN takes a number, and must fit into the window like a byte.
        let fin = hot.has(flag::FIN) && !hot.fin_is_sent() && all && usable > queued;
        let len = queued.min(self.burst(allowed, size));
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
        //# The transmitter SHOULD collapse successive bits when it packetizes data, to send the largest
        //# possible segment (SHLD-27).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.2
        //# However, a TCP implementation SHOULD send a maximum-sized segment whenever possible (SHLD-28) to
        //# improve performance (see Section 3.8.6.2.1).
        let whole = len - len % size;
        let small_may_go = self.small_may_go(slot, hot, queued, usable, allowed);
        // A rest goes along if it is the end of the queue and may go.
        let len = if len == queued && (small_may_go || fin) {
            len
        } else if whole > 0 {
            whole
        } else if small_may_go {
            len
        } else {
            0
        };
        let fin = fin && len == queued;
        if len == 0 && !fin {
            return Plan::Nothing;
        }
        Plan::New(Span::new(hot.snd_nxt, hot.snd_nxt + len + u32::from(fin)))
    }

    /// Whether less than a full segment may be sent (RFC 9293, 3.8.6.2.1 and 3.7.4; MUST-38,
    /// SHLD-7, MUST-17).
    fn small_may_go(&self, slot: u32, hot: &Hot, queued: u32, usable: u32, allowed: u32) -> bool {
        if hot.has(flag::PUSH) || hot.has(flag::TAIL_PROBE) {
            return true;
        }
        if self.choices.of(slot).cork && !hot.has(flag::FIN) {
            return false;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.4
        //# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments (SHLD-7).
        let nothing_unacknowledged = hot.snd_una == hot.snd_nxt;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.4
        //# However, there MUST be a way for an application to disable the Nagle algorithm on an individual
        //# connection (MUST-17).
        let no_delay = hot.has(flag::NO_DELAY) || hot.has(flag::FIN);
        if queued <= allowed {
            return nothing_unacknowledged || no_delay;
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.2.1
        //# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
        // Half of the largest window that the peer ever offered.
        usable <= allowed
            && usable >= hot.largest_window().div_ceil(2)
            && (nothing_unacknowledged || no_delay)
    }

    /// Payload of one segment beside the options that it will have (RFC 6691, 3.1).
    pub(crate) fn payload_size(&self, slot: u32) -> u32 {
        let hot = &self.flows[slot];
        let stamps = if hot.has(flag::TIMESTAMPS) { 12 } else { 0 };
        let blocks = self.sack_blocks(slot).len() as u32;
        let sacks = if blocks > 0 { 4 + 8 * blocks } else { 0 };
        u32::from(hot.mss) - stamps - sacks
    }

    /// How much of `bytes` goes into one frame: whole segments, if the device cuts frames.
    fn burst(&self, bytes: u32, size: u32) -> u32 {
        let most = (self.gso / size).max(1) * size;
        bytes.min(most)
    }
}

/// What is in the network. Without SACK, each duplicate acknowledgement says that a segment has
/// left it (RFC 5681, 3.2, steps 3 and 4).
fn emulated_flight<M>(hot: &Hot, cold: &Cold<M>) -> u32 {
    let left = if hot.has(flag::SACK) { 0 } else { cold.duplicates.saturating_mul(hot.mss.into()) };
    cold.flight.in_flight().saturating_sub(left)
}

/// The part of a span that is data: all but a FIN.
pub(crate) fn data_of(span: Span, end: Seq) -> Span {
    Span::new(span.start, span.end.min(end))
}
