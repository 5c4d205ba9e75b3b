//! How large segments may be where longer ones vanish on the way, and errors about them, too (RFC 4821).

use std::time::Duration;

use super::Stack;
use super::flow::{Cold, Hot, Lasting, NO_COLD, Search, flag};
use super::seq::Span;
use super::transmit::Plan;
use crate::control::Control;
use crate::time::Time;

/// After this time larger packets are tried again (RFC 1191, 6.3).
const NARROW: Duration = Duration::from_secs(600);

/// Timeouts in a row after which larger segments are suspected to vanish; and after which smaller ones vanish
/// as well (RFC 4821, 7.7).
const BLACK_HOLE: u8 = 3;
const SILENCE: u8 = 5;
/// Payload that nearly every path takes (RFC 4821, 7.2), and that of the least path of IPv6.
const SAFE_MSS: u16 = 1_024;
const SAFE_MSS_V6: u16 = 1_220;

/// The search ends when it has come so near to the largest segment that arrives.
const NEAR: u16 = 32;
/// Segments that follow a probe, so that its loss is found without a timeout (RFC 4821, 7.4).
const BEHIND: u32 = 3;

fn second(time: Time) -> u32 {
    (time.micros() / 1_000_000) as u32
}

impl<M> Lasting<M> {
    /// The size that is tried next: the largest one first, since the network was only silent for a while as
    /// a rule, and then half of what is left (RFC 4821, 7.3).
    fn next_mss(&self, arrives: u16) -> Option<u16> {
        match self.too_large {
            0 => None,
            first if first > self.mss => Some(self.mss),
            lost => (lost.saturating_sub(arrives) > NEAR).then(|| arrives + (lost - arrives) / 2),
        }
    }
}

impl<C: Control> Stack<C> {
    /// The path takes less from now on: what is outstanding is cut smaller and sent again.
    pub(crate) fn narrow(&mut self, now: Time, slot: u32, mss: u16) {
        let hot = &mut self.flows[slot];
        hot.mss = mss;
        let lasting = &mut self.lasting[slot as usize];
        (lasting.narrow_until, lasting.too_large) = (second(now.after(NARROW)), 0);
        if hot.cold != NO_COLD {
            let cold = &mut self.colds[hot.cold];
            cold.search = None;
            cold.flight.lose(&mut self.records, now, |_| Some(now));
            hot.set(flag::FORCE);
        }
    }

    /// The retransmission timer has expired. Tries smaller segments after some times, and the former ones if they
    /// do not arrive either.
    pub(crate) fn suspect_black_hole(&mut self, now: Time, slot: u32) {
        let hot = &self.flows[slot];
        let safe = if hot.tuple.is_v6() { SAFE_MSS_V6 } else { SAFE_MSS };
        let first = self.colds[hot.cold].flight.first(&self.records);
        let is_large = first.is_some_and(|record| record.span.len() > safe.into());
        if hot.backoff == BLACK_HOLE && hot.mss > safe && is_large {
            self.narrow(now, slot, safe);
            let lasting = &mut self.lasting[slot as usize];
            lasting.too_large = lasting.mss + 1;
        } else if hot.backoff == SILENCE && hot.mss == safe {
            self.widest(slot);
        }
    }

    /// Tries larger packets again once it is time: as long as the largest ones are known not to arrive, by a
    /// search.
    pub(crate) fn widen(&mut self, now: Time, slot: u32) {
        let lasting = &mut self.lasting[slot as usize];
        if lasting.narrow_until == 0 || lasting.narrow_until > second(now) {
            return;
        }
        if lasting.too_large == 0 || lasting.too_large > lasting.mss {
            return self.widest(slot);
        }
        (lasting.narrow_until, lasting.too_large) = (second(now.after(NARROW)), lasting.mss + 1);
    }

    fn widest(&mut self, slot: u32) {
        let lasting = &mut self.lasting[slot as usize];
        (lasting.narrow_until, lasting.too_large) = (0, 0);
        self.flows[slot].mss = lasting.mss;
    }

    /// A larger segment than is known to arrive, where one is to be tried: with SACK, whose reports say that it
    /// is missing, and with enough to send behind it. What is on its way makes room for it. `size`: payload of
    /// others.
    pub(crate) fn plan_search(
        &self,
        slot: u32,
        hot: &Hot,
        cold: &Cold<C::Memory>,
        size: u32,
    ) -> Option<Plan> {
        let mss = self.lasting[slot as usize].next_mss(hot.mss)?;
        let is_busy = cold.search.is_some() || cold.recovery.is_some() || hot.has(flag::TAIL_PROBE);
        if is_busy || !hot.has(flag::SACK) {
            return None;
        }
        let len = size + u32::from(mss - hot.mss);
        let queued = hot.snd_end.past(hot.snd_nxt).min(hot.snd_edge().past(hot.snd_nxt));
        if queued.min(hot.window.congestion) < len + BEHIND * size {
            return None;
        }
        let room = hot.window.congestion.saturating_sub(cold.flight.in_flight());
        let span = Span::new(hot.snd_nxt, hot.snd_nxt + len);
        Some(if room < len { Plan::Nothing } else { Plan::Search(span) })
    }

    /// It was sent.
    pub(crate) fn sent_search(&mut self, slot: u32, span: Span) {
        let hot = &self.flows[slot];
        let mss = self.lasting[slot as usize].next_mss(hot.mss);
        if let Some(mss) = mss.filter(|_| hot.cold != NO_COLD) {
            let cold = &mut self.colds[hot.cold];
            cold.flight.keep_apart(&mut self.records, span);
            cold.search = Some(Search { span, mss });
        }
    }

    /// Something was acknowledged: if it is that segment, others may be as large.
    pub(crate) fn settle_search(&mut self, slot: u32) {
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        let (flight, records) = (&cold.flight, &self.records);
        if let Some(Search { mss, .. }) =
            cold.search.take_if(|search| flight.has_arrived(records, search.span))
        {
            hot.mss = mss;
            let lasting = &mut self.lasting[slot as usize];
            if mss == lasting.mss {
                (lasting.narrow_until, lasting.too_large) = (0, 0);
            }
        }
    }

    /// Bytes are sent again: if they are of that segment, it did not arrive (RFC 4821, 7.6.2).
    pub(crate) fn repeats_search(&mut self, slot: u32, again: Span) {
        let cold = &mut self.colds[self.flows[slot].cold];
        let overlaps =
            |search: &mut Search| again.start.before(search.span.end) && search.span.start.before(again.end);
        if let Some(Search { mss, .. }) = cold.search.take_if(overlaps) {
            self.lasting[slot as usize].too_large = mss;
        }
    }
}
