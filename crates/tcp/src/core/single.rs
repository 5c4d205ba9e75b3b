//! Flows that have something outstanding and no block: they send one segment at a time, which they repeat by
//! the timer alone. So peers that acknowledge nothing keep no block from others, and no flow waits for them.

use std::time::Duration;

use super::Stack;
use super::flow::{Hot, Lasting, NO_COLD, flag};
use super::seq::Span;
use super::timers::R1;
use super::transmit::Plan;
use crate::control::Control;
use crate::event::Failure;
use crate::time::{Deadline, Time};

/// Blocks that are looked at for one whose peer does not acknowledge.
const TRIES: u32 = 16;

/// Seconds of the caller's clock, modulo 2^32.
fn seconds(at: Time) -> u32 {
    (at.micros() / 1_000_000) as u32
}

impl<C: Control> Stack<C> {
    #[inline]
    pub(crate) fn is_single(hot: &Hot) -> bool {
        hot.cold == NO_COLD && hot.outstanding() > 0 && hot.state.is_synchronized()
    }

    /// What such a flow sends: the first segment when its timer has expired. It waits for a block if it
    /// has more to send and its peer acknowledges.
    pub(crate) fn plan_single(&self, slot: u32, hot: &Hot, size: u32) -> Plan {
        if hot.has(flag::FORCE) {
            return Plan::Again(Span::new(hot.snd_una, hot.snd_nxt.min(hot.snd_una + size)));
        }
        let has_more = hot.snd_limit() != hot.snd_nxt || self.lasting[slot as usize].gave_block;
        if hot.backoff == 0 && has_more { Plan::Starved } else { Plan::Nothing }
    }

    /// A segment was sent for the first time.
    pub(crate) fn sent_single(&mut self, now: Time, slot: u32, span: Span) {
        let lasting = &mut self.lasting[slot as usize];
        lasting.progress = seconds(now);
        lasting.gave_block = false;
        let hot = &mut self.flows[slot];
        hot.snd_nxt = span.end;
        hot.clear(flag::PUSH);
        self.restart_single(now, slot);
    }

    /// The first segment was sent again, or something of what is outstanding is acknowledged.
    pub(crate) fn restart_single(&mut self, now: Time, slot: u32) {
        let at = now.plus(self.rto(slot));
        let hot = &mut self.flows[slot];
        hot.clear(flag::FORCE | flag::TAIL_PROBE);
        hot.send_at = Deadline::at(at);
    }

    /// An acknowledgement of a part of what is outstanding: the peer lives.
    pub(crate) fn acknowledged_single(&mut self, now: Time, slot: u32) {
        self.lasting[slot as usize].progress = seconds(now);
        self.flows[slot].backoff = 0;
        self.restart_single(now, slot);
    }

    /// RFC 6298, 5.4 to 5.6. `late`: how long the program did not run.
    pub(crate) fn on_single_timer(&mut self, now: Time, slot: u32, late: Duration) {
        let lasting = &mut self.lasting[slot as usize];
        lasting.progress = lasting.progress.wrapping_add(late.as_secs() as u32);
        let silent = seconds(now).wrapping_sub(lasting.progress);
        if Duration::from_secs(silent.into()) >= self.patience(slot) {
            return self.give_up(slot);
        }
        if self.flows[slot].backoff == R1 {
            self.report(slot, Failure::TimedOut);
        }
        let Lasting { memory, .. } = &mut self.lasting[slot as usize];
        let hot = &mut self.flows[slot];
        let (flight, again) = (hot.outstanding(), hot.backoff > 0);
        self.control.timed_out(&mut hot.window, memory, flight, hot.mss.into(), again);
        hot.backoff = (hot.backoff + 1).min(20);
        self.restart_single(now, slot);
        self.flows[slot].set(flag::FORCE);
    }

    /// Gives a flow's block to others, if its peer lets timeouts pass.
    pub(crate) fn give_block(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        if !cold.by_timeout || cold.recovery.is_none() || cold.holds || cold.is_holding() {
            return;
        }
        let lasting = &mut self.lasting[slot as usize];
        lasting.progress = seconds(cold.progress_at);
        lasting.gave_block = true;
        let at = cold.rto_at;
        cold.flight.clear(&mut self.records);
        self.colds.remove(hot.cold);
        hot.cold = NO_COLD;
        let at = at.unwrap_or_else(|| now.plus(self.rto(slot)));
        let hot = &mut self.flows[slot];
        hot.clear(flag::TAIL_PROBE);
        hot.send_at = Deadline::at(at);
        self.wheel.schedule(slot, at.tick_after());
    }

    /// Takes a block from a flow whose peer is silent, if there is one among the next few.
    pub(crate) fn take_block(&mut self, now: Time) {
        let bound = self.colds.bound() as u32;
        for _ in 0..bound.min(TRIES) {
            let cold = self.cold_hand % bound;
            self.cold_hand = cold + 1;
            if self.colds.is_taken(cold) {
                self.give_block(now, self.colds[cold].slot);
            }
            if !self.colds.is_full() {
                return;
            }
        }
    }

    /// A block was found for a flow with something outstanding: when that was sent is not known any more.
    pub(crate) fn adopt(&mut self, slot: u32) {
        let Lasting { progress, gave_block, .. } = self.lasting[slot as usize];
        self.lasting[slot as usize].gave_block = false;
        let now = self.now;
        let rto = self.rto(slot);
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        let span = Span::new(hot.snd_una, hot.snd_nxt);
        cold.flight.adopt(&mut self.records, span, now, gave_block);
        let silent = u64::from(seconds(now).wrapping_sub(progress)) * 1_000_000;
        cold.progress_at = Time::from_micros(now.micros().saturating_sub(silent));
        cold.rto_at = Some(hot.send_at.tick(now).map_or(now.plus(rto), Time::of_tick));
        if gave_block {
            cold.recovery = Some(hot.snd_nxt);
            cold.by_timeout = true;
        }
    }
}
