//! What an acknowledgement changes (RFC 9293, 3.10.7.4, fifth; RFC 5681; RFC 6298).

use super::flow::{Lasting, NO_COLD, flag};
use super::listen::timestamp;
use super::pace::Undo;
use super::rack::DUPLICATES;
use super::reduce::Reduction;
use super::state::{State, Step};
use super::wire::{Flags, Head};
use super::{Keep, Stack};
use crate::control::{Acked, Control};
use crate::event::{Ready, Reason};
use crate::time::{Deadline, Time, micros};

impl<C: Control> Stack<C> {
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        slot: u32,
        head: &Head,
        len: u32,
        keep: &mut impl Keep,
    ) -> Result<(), Reason> {
        let hot = &mut self.flows[slot];
        let ack = head.ack;
        if hot.state == State::SynReceived {
            // RFC 9293, 3.10.7.4, fifth: only an ACK of our SYN opens, any other is answered with RST.
            if !ack.after(hot.snd_una) || ack.after(hot.snd_nxt) {
                let reset = Head { seq: ack, flags: Flags::RST, ..Head::default() };
                let tuple = hot.tuple;
                self.reply(tuple, reset);
                return Err(Reason::Acknowledgement);
            }
            hot.snd_una = ack;
            self.established(now, slot);
            keep.acknowledged(slot, ack);
        }
        let hot = &mut self.flows[slot];
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# TCP stacks that implement RFC 5961 MUST add an input check that the ACK value is acceptable only
        //# if it is in the range of ((SND.UNA - MAX.SND.WND) =< SEG.ACK =< SND.NXT).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.4
        //# All incoming segments whose ACK value doesn't satisfy the above condition MUST be discarded and an
        //# ACK sent back.
        // RFC 5961, 5.2: at most one largest window old. That is at most 2^30 (RFC 7323, 2.3).
        let oldest = hot.snd_una - (65_535 << hot.snd_scale());
        if ack.after(hot.snd_nxt) || ack.before(oldest) {
            self.challenge(now, slot, len > 0);
            return Err(Reason::Acknowledgement);
        }
        if ack.before(hot.snd_una) {
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.1
        //# The window size MUST be treated as an unsigned number, or else large window sizes will appear like
        //# negative windows and TCP will not work (MUST-1).
        let window = u32::from(head.window) << hot.snd_scale();
        let same_window = window == hot.snd_wnd;
        let closed = !hot.snd_edge().after(hot.snd_nxt);
        let acked = ack - hot.snd_una;
        // Of two with the same numbers the one with the smaller window was overtaken, unless it closes it.
        let newer = acked > 0 || head.seq.after(hot.snd_wl1) || window > hot.snd_wnd || window == 0;
        if hot.snd_wl1.upto(head.seq) && newer {
            hot.offered(window);
            hot.snd_wl1 = head.seq;
        } else {
            // An overtaken segment: it acknowledges, and offers nothing. The right edge stays.
            hot.snd_wnd = hot.snd_wnd.saturating_sub(acked);
        }
        if closed && hot.outstanding() == 0 && hot.snd_edge().after(hot.snd_nxt) {
            // The probes have backed off, not what is sent now.
            hot.backoff = 0;
            hot.send_at = Deadline::NONE;
        }
        if hot.cold != NO_COLD {
            let duplicate = acked == 0 && len == 0 && same_window && !head.flags.has(Flags::FIN);
            self.on_delivery(now, slot, head, duplicate);
        } else if acked > 0 {
            self.acknowledged_single(now, slot);
        }
        let hot = &mut self.flows[slot];
        hot.snd_una = ack;
        if acked > 0 {
            if hot.snd_una == hot.snd_nxt {
                hot.send_at = Deadline::NONE;
                hot.clear(flag::FORCE | flag::TAIL_PROBE);
            }
            keep.acknowledged(slot, ack.min(hot.snd_end));
            if hot.has(flag::ORPHAN) && !hot.has(flag::LINGER) {
                // A slow reader is given time for as long as it reads.
                let patience = self.patience(slot);
                self.flows[slot].life_at = Deadline::at(now.after(patience));
            }
            let hot = &self.flows[slot];
            let all = hot.has(flag::FIN) && ack == hot.snd_end + 1;
            self.happen(slot, if all { Ready::FLUSHED } else { Ready::WRITABLE });
            if all {
                self.on_fin_acknowledged(now, slot);
            }
        }
        Ok(())
    }

    /// Losses, round-trip time, congestion window.
    fn on_delivery(&mut self, now: Time, slot: u32, head: &Head, duplicate: bool) {
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        let ack = head.ack;
        let acked = ack.past(hot.snd_una);
        let with_sack = hot.has(flag::SACK);
        let flight = cold.flight.in_flight();
        // Not in a fast recovery, and not by the acknowledgement that ends it (RFC 5681, 3.2).
        let may_grow = cold.recovery.is_none() || cold.by_timeout;
        let sacks = if with_sack { &head.sacks[..] } else { &[] };
        let rack = &mut self.lasting[slot as usize].rack;
        let numbers = (ack, hot.snd_nxt);
        let delivered = cold.flight.acknowledge(&mut self.records, rack, numbers, sacks, now);
        if cold.search.is_some() {
            self.settle_search(slot);
        }
        let echo = || self.echoed(now, slot, head).filter(|_| acked > 0);
        let rtt = delivered.rtt.or_else(echo);
        if let Some(rtt) = rtt {
            self.measured(slot, rtt);
        }
        let rto = self.rto(slot);
        let may_wait = self.user_timeout(slot).is_none();
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        let Lasting { rack, memory, pipe, rate, .. } = &mut self.lasting[slot as usize];
        let mss = u32::from(hot.mss);
        if let Some(bytes_a_second) = cold.delivery.delivered(now, delivered.bytes, ack, hot.snd_nxt) {
            *rate = bytes_a_second;
        }
        let mut lost = false;
        if with_sack {
            // What a tail loss probe repeats says nothing of the order.
            let needless = delivered.duplicate.is_some() && cold.tail_probe.is_none();
            rack.adapt(ack, hot.snd_nxt, needless);
            lost = cold.detect_congestion(&mut self.records, rack, hot, now);
        } else if acked > 0 {
            cold.duplicates = 0;
            // A partial acknowledgement (RFC 6582, 3.2, step 3).
            if cold.recovery.is_some_and(|point| ack.before(point)) {
                lost = cold.flight.lose_first(&mut self.records, mss);
                // Whatever is in flight: there is one for each round trip.
                hot.set(flag::FORCE);
            }
        } else if duplicate && !cold.flight.is_empty() {
            cold.duplicates = cold.duplicates.saturating_add(1);
            if cold.duplicates == DUPLICATES && cold.recovery.is_none() {
                lost = cold.flight.lose_first(&mut self.records, mss);
            }
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# The sender MAY also retransmit old data beyond SND.UNA+SND.WND (MAY-7), but SHOULD NOT time out
        //# the connection if data beyond the right window edge is not acknowledged (SHLD-17).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6
        //# If the window shrinks to zero, the TCP implementation MUST probe it in the standard way (described
        //# below) (MUST-35).
        // A peer that answers, and has taken back the window for what is outstanding, lives: for as long
        // as the program has set no bound.
        if acked > 0 || hot.snd_edge().before(hot.snd_nxt) && may_wait {
            cold.progress_at = now;
        }
        if acked > 0 {
            // RFC 6298, 5.2 and 5.3.
            cold.rto_at = (!cold.flight.is_empty()).then(|| now.plus(rto));
        }
        if cold.recovery.is_some_and(|point| point.upto(ack)) {
            cold.recovery = None;
            cold.by_timeout = false;
            if cold.reduction.take().is_some() {
                hot.window.congestion = hot.window.threshold;
            }
            rack.recovered();
        }
        let repaired = cold.settle_tail_probe(ack, &delivered, duplicate);
        let echo = head.timestamps.filter(|_| hot.has(flag::TIMESTAMPS)).map(|stamps| stamps.echo);
        if let Some((before, remembered)) = cold.needless(ack, acked, echo, delivered.duplicate) {
            // Nothing was lost, only late (RFC 4015, 3.2; RFC 9438, 4.9).
            hot.window.congestion = hot.window.congestion.max(before.congestion);
            hot.window.threshold = before.threshold;
            *memory = remembered;
            cold.flight.fly_again(&mut self.records);
            (cold.recovery, cold.reduction, cold.undo) = (None, None, None);
            (cold.by_timeout, lost) = (false, false);
        }
        if (lost || repaired) && cold.recovery.is_none() {
            cold.undo = lost.then(|| Undo::new(hot.window, *memory));
            pipe.validate(&mut hot.window, flight);
            self.control.congested(&mut hot.window, memory, flight, mss);
            if lost {
                cold.recovery = Some(hot.snd_nxt);
                cold.by_timeout = false;
                // Without SACK each acknowledgement says too little of what was delivered.
                cold.reduction = with_sack.then(|| Reduction::new(flight));
                // Fast retransmit (RFC 5681, 3.2): the first one at once.
                hot.set(flag::FORCE);
            }
        } else if acked > 0 && may_grow && cold.usage.may_grow(&hot.window) {
            // What was selectively acknowledged has counted before.
            let bytes = if with_sack { delivered.bytes } else { acked };
            let (srtt, upto, sent_to) = (hot.srtt, ack, hot.snd_nxt);
            let acked = Acked { now, bytes, mss, rtt, srtt, upto, sent_to };
            self.control.acknowledged(&mut hot.window, memory, &acked);
        }
        if let Some(reduction) = &mut cold.reduction
            && delivered.bytes > 0
        {
            let safe = acked > 0 && !lost;
            let in_flight = cold.flight.in_flight();
            let threshold = hot.window.threshold;
            hot.window.congestion = reduction.window(delivered.bytes, in_flight, threshold, mss, safe);
        }
        if acked > 0 || delivered.sacked {
            let max_ack_delay = micros(self.profile.rto_min);
            cold.schedule_tail_probe(hot, now, max_ack_delay);
        }
    }

    fn on_fin_acknowledged(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        hot.state = hot.state.after(Step::FinAcknowledged);
        match hot.state {
            State::Closed => self.end(slot, None),
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
            //# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time 2xMSL
            //# (Maximum Segment Lifetime) (MUST-13).
            State::TimeWait => hot.life_at = Deadline::at(now.after(self.profile.time_wait)),
            State::FinWait2 if hot.has(flag::ORPHAN) => {
                hot.life_at = Deadline::at(now.after(self.profile.fin_wait));
            }
            _ => {}
        }
    }

    /// A round-trip time by the timestamp that an acknowledgement of repeated bytes echoes: of which
    /// transmission it is is clear (RFC 7323, 4.1). The clock's millisecond adds nothing.
    fn echoed(&self, now: Time, slot: u32, head: &Head) -> Option<u32> {
        let hot = &self.flows[slot];
        let stamps = head.timestamps.filter(|stamps| hot.has(flag::TIMESTAMPS) && stamps.echo != 0)?;
        let millis = timestamp(now, hot.ts_offset).wrapping_sub(stamps.echo);
        let plausible = millis < 1 << 20;
        plausible.then(|| (millis * 1000).saturating_sub(1000).max(hot.srtt))
    }

    /// Takes a round-trip time in microseconds (RFC 6298, 2.2 and 2.3).
    pub(crate) fn measured(&mut self, slot: u32, rtt: u32) {
        let hot = &mut self.flows[slot];
        let rtt = rtt.clamp(1, 60_000_000);
        if hot.srtt == 0 {
            hot.srtt = rtt;
            hot.rttvar = rtt / 2;
        } else {
            let off = hot.srtt.abs_diff(rtt);
            hot.rttvar = hot.rttvar - hot.rttvar / 4 + off / 4;
            hot.srtt = (hot.srtt - hot.srtt / 8 + rtt / 8).max(1);
        }
        // RFC 6298, 5: a measurement ends the backing off.
        hot.backoff = 0;
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.1
    //# The RTO MUST be computed according to the algorithm in [10], including Karn's algorithm for taking RTT
    //# samples (MUST-18).
    /// The retransmission timeout in microseconds, backed off (RFC 6298, 2 and 5.5).
    pub(crate) fn rto(&self, slot: u32) -> u64 {
        let hot = &self.flows[slot];
        let profile = &self.profile;
        let base = if hot.srtt > 0 {
            // The floor is one of the variation, as Linux has it, and not of the sum: a steady path
            // would leave no time for a delayed acknowledgement.
            u64::from(hot.srtt) + (4 * u64::from(hot.rttvar)).max(micros(profile.rto_min))
        } else if hot.has(flag::SYN_REPEATED) && hot.state.is_synchronized() {
            // RFC 6298, 5.7.
            3_000_000
        } else {
            micros(profile.rto_initial)
        };
        (base << hot.backoff.min(16)).min(micros(profile.rto_max))
    }
}
