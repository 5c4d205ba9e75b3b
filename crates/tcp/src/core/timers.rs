//! When something is to happen next, and what happens then.

use std::time::Duration;

use super::Stack;
use super::flow::{Lasting, NO_COLD, flag};
use super::pace::Undo;
use super::reduce::Reduction;
use super::state::{State, Step};
use super::transmit::Plan;
use super::wire::{Flags, Head};
use crate::config::DAY;
use crate::control::Control;
use crate::event::{Failure, Ready};
use crate::time::{Deadline, Time};

/// Unanswered zero-window probes that end a connection: with the intervals doubling up to a
/// minute, that is more than 100 s (RFC 9293, 3.8.3, R2).
const WINDOW_PROBES: u8 = 12;

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
//# The value of R1 SHOULD correspond to at least 3 retransmissions, at the current RTO (SHLD-10).
pub(super) const R1: u8 = 3;

impl<C: Control> Stack<C> {
    /// When to call [`advance`](Stack::advance) next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.wheel.deadline().map(Time::of_tick)
    }

    /// Does what is due.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time) {
        self.resume(now);
        let flows = self.limits.flows as u32;
        let syns = self.limits.half_open as u32;
        while let Some(owner) = self.wheel.pop(now.tick()) {
            if owner < flows {
                if self.flows.is_taken(owner) {
                    self.on_flow_timer(now, owner);
                }
            } else if owner < flows + syns {
                self.on_syn_timer(now, owner - flows);
            } else {
                self.end_wait(owner - flows - syns);
            }
        }
    }

    /// Sets the time. After a long pause of the program, past deadlines would be taken for future ones.
    #[inline]
    pub(crate) fn resume(&mut self, now: Time) {
        if now.since(self.now) > DAY {
            self.end_pause(now);
        }
        self.now = self.now.max(now);
    }

    #[cold]
    fn end_pause(&mut self, now: Time) {
        let before = self.now;
        let slots: Vec<u32> = self.flows.slots().collect();
        for slot in slots {
            let hot = &mut self.flows[slot];
            for at in [&mut hot.send_at, &mut hot.ack_at, &mut hot.life_at] {
                if at.tick(before).is_some_and(|tick| tick < now.tick()) {
                    *at = Deadline::at(Time::of_tick(now.tick()));
                }
            }
        }
    }

    fn on_flow_timer(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        if hot.ack_at.is_due(now) {
            hot.ack_at = Deadline::NONE;
            hot.set(flag::ACK_NOW);
        }
        if hot.send_at.is_due(now) {
            let late = hot.send_at.tick(now).map_or(Duration::ZERO, |due| now.since(Time::of_tick(due)));
            hot.send_at = Deadline::NONE;
            self.on_send_timer(now, slot, late);
        }
        if self.flows[slot].life_at.is_due(now) {
            self.flows[slot].life_at = Deadline::NONE;
            self.on_life_timer(now, slot);
        }
        self.settle(now, slot);
    }

    fn on_send_timer(&mut self, now: Time, slot: u32, late: Duration) {
        let hot = &mut self.flows[slot];
        match hot.state {
            State::Closed => {}
            State::SynSent | State::SynReceived => {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
                //# SYN retransmissions MUST be handled in the general way just described for data
                //# retransmissions, including notification of the application layer.
                hot.backoff = (hot.backoff + 1).min(20);
                hot.set(flag::SYN_NOW | flag::SYN_REPEATED);
            }
            _ if Self::is_single(hot) => self.on_single_timer(now, slot, late),
            _ if hot.outstanding() > 0 => self.on_outstanding_timer(now, slot),
            _ => self.on_persist_timer(now, slot),
        }
    }

    /// Reordering, tail probe or retransmission.
    fn on_outstanding_timer(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        let due = |at: Option<Time>| at.is_some_and(|at| at.tick_after() <= now.tick());
        if due(cold.reorder_at) {
            let flight = cold.flight.in_flight();
            let Lasting { rack, memory, pipe, .. } = &mut self.lasting[slot as usize];
            // RFC 8985, 6.2: the reordering timer.
            if cold.detect_congestion(&mut self.records, rack, hot, now) && cold.recovery.is_none() {
                let mss = u32::from(hot.mss);
                cold.undo = Some(Undo::new(hot.window, *memory));
                pipe.validate(&mut hot.window, flight);
                self.control.congested(&mut hot.window, memory, flight, mss);
                let mut reduction = Reduction::new(flight);
                let (in_flight, threshold) = (cold.flight.in_flight(), hot.window.threshold);
                hot.window.congestion = reduction.window(0, in_flight, threshold, mss, false);
                cold.reduction = Some(reduction);
                cold.recovery = Some(hot.snd_nxt);
                cold.by_timeout = false;
                hot.set(flag::FORCE);
            }
        } else if due(cold.tail_at) {
            cold.tail_at = None;
            hot.set(flag::TAIL_PROBE);
            // Until the probe is sent there is this timer.
            let rto = self.rto(slot);
            let cold = self.flows[slot].cold;
            self.colds[cold].rto_at = Some(now.plus(rto));
        } else if due(cold.rto_at) {
            self.on_retransmission_timer(now, slot);
        }
    }

    /// RFC 6298, 5.4 to 5.6.
    fn on_retransmission_timer(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
        //# The following procedure MUST be used to handle excessive retransmissions of data segments
        //# (MUST-20):
        // A program that did not run for a while has sent nothing meanwhile: that is not the peer's silence.
        let late = cold.rto_at.map_or(Duration::ZERO, |due| now.since(due));
        cold.progress_at = cold.progress_at.after(late);
        let progress_at = cold.progress_at;
        if now.since(progress_at) >= self.patience(slot) {
            return self.give_up(slot);
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.3
        //# (e) TCP implementations SHOULD inform the application of the delivery problem (unless such
        //# information has been disabled by the application; see the "Asynchronous Reports" section (Section
        //# 3.9.1.8)), when R1 is reached and before R2 (SHLD-9).
        if self.flows[slot].backoff == R1 {
            self.report(slot, Failure::TimedOut);
        }
        let end = self.user_timeout(slot).map(|most| progress_at.after(most));
        let hot = &mut self.flows[slot];
        let cold = &mut self.colds[hot.cold];
        let again = cold.by_timeout && cold.recovery.is_some();
        let flight = cold.flight.in_flight();
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
        //# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion
        //# avoidance, and exponential backoff of RTO to avoid creating congestion collapse conditions
        //# (MUST-19).
        let Lasting { rack, memory, pipe, .. } = &mut self.lasting[slot as usize];
        if !again {
            cold.undo = Some(Undo::new(hot.window, *memory));
            pipe.validate(&mut hot.window, flight);
        }
        self.control.timed_out(&mut hot.window, memory, flight, u32::from(hot.mss), again);
        cold.lose_on_timeout(&mut self.records, rack, hot, now);
        cold.recovery = Some(hot.snd_nxt);
        cold.by_timeout = true;
        cold.reduction = None;
        cold.tail_probe = None;
        cold.tail_at = None;
        cold.reorder_at = None;
        cold.duplicates = 0;
        hot.clear(flag::TAIL_PROBE);
        hot.set(flag::FORCE);
        hot.backoff = (hot.backoff + 1).min(20);
        self.suspect_black_hole(now, slot);
        let next = now.plus(self.rto(slot));
        let cold = self.flows[slot].cold;
        self.colds[cold].rto_at = Some(end.map_or(next, |end| end.min(next)));
        if !self.waiting.is_empty() {
            self.give_block(now, slot);
        }
    }

    /// Something may be wrong that ends nothing yet: the program can ask what
    /// ([`Info::trouble`](super::calls::Info::trouble)), or ignore it.
    pub(crate) fn report(&mut self, slot: u32, trouble: Failure) {
        self.choices.of_mut(slot).trouble = Some(trouble);
        self.happen(slot, Ready::TROUBLE);
    }

    /// Data waits, nothing is outstanding: the window is closed, or too small (RFC 9293, 3.8.6.1,
    /// MUST-36 and SHLD-29; 3.8.6.2.1, the override).
    fn on_persist_timer(&mut self, now: Time, slot: u32) {
        let hot = &self.flows[slot];
        if hot.snd_limit() == hot.snd_nxt {
            return self.restart_after_idle(slot);
        }
        // It waits to be sent, or for a block: nothing that backs off.
        if self.plan(slot) != Plan::Nothing {
            return;
        }
        if self.flows[slot].probes >= WINDOW_PROBES || self.is_held_for_too_long(now, slot) {
            return self.give_up(slot);
        }
        let hot = &mut self.flows[slot];
        if hot.snd_edge().after(hot.snd_nxt) {
            hot.set(flag::PUSH);
        } else {
            hot.backoff = (hot.backoff + 1).min(20);
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
            //# Probing of zero (offered) windows MUST be supported (MUST-36).
            hot.probes += 1;
            hot.set(flag::PROBE);
        }
    }

    /// Nothing was sent for a retransmission timeout (RFC 5681, 4.1): what the path took before says
    /// little, so it is tried anew, up to three quarters of that by slow start (RFC 2861, 3.2).
    pub(crate) fn restart_after_idle(&mut self, slot: u32) {
        let least = self.restart_window(slot);
        let window = &mut self.flows[slot].window;
        if window.congestion > least {
            window.threshold = window.threshold.max(window.congestion / 4 * 3);
            window.congestion = least;
        }
    }

    /// The initial window (RFC 5681, 4.1).
    fn restart_window(&self, slot: u32) -> u32 {
        self.control.start(self.flows[slot].mss.into(), false).congestion
    }

    fn on_life_timer(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        match hot.state {
            State::Closed => {}
            State::SynSent | State::SynReceived => self.end(slot, Some(Failure::TimedOut)),
            State::TimeWait => self.end(slot, None),
            // Nobody waits for it any more: linger, or FIN-WAIT-2, has lasted long enough.
            State::FinWait2 if hot.has(flag::ORPHAN) => self.end(slot, None),
            _ if hot.has(flag::ORPHAN) => self.abort(now, slot),
            _ if hot.has(flag::KEEP_ALIVE) => {
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
                //# Consequently, if a keep-alive mechanism is implemented it MUST NOT interpret failure to
                //# respond to any specific probe as a dead connection (MUST-29).
                if self.is_silent_for_too_long(slot) {
                    return self.give_up(slot);
                }
                let interval = self.keep_alive(slot).interval;
                let hot = &mut self.flows[slot];
                //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
                //# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or
                //# acknowledgment packets have been received for the connection within an interval (MUST-26).
                // Unacknowledged data is its own probe.
                if hot.outstanding() == 0 {
                    hot.probes = hot.probes.saturating_add(1);
                    hot.set(flag::PROBE);
                }
                hot.life_at = Deadline::at(now.after(interval));
            }
            _ => {}
        }
    }

    /// Something arrived: the connection lives.
    pub(crate) fn touch_keep_alive(&mut self, now: Time, slot: u32) {
        let hot = &self.flows[slot];
        let open = hot.state.is_synchronized() && hot.state != State::TimeWait;
        if hot.has(flag::KEEP_ALIVE) && !hot.has(flag::ORPHAN) && open {
            let idle = self.keep_alive(slot).idle;
            self.flows[slot].life_at = Deadline::at(now.after(idle));
        }
    }

    /// Ends a flow whose peer is silent, with an RST for a peer that is not.
    pub(super) fn give_up(&mut self, slot: u32) {
        self.send_reset(slot);
        self.end(slot, Some(Failure::TimedOut));
    }

    pub(crate) fn send_reset(&mut self, slot: u32) {
        let hot = &self.flows[slot];
        let (seq, ack) = (hot.snd_nxt, hot.rcv_nxt);
        let flags = Flags::RST.with(Flags::ACK);
        let head = Head { seq, ack, flags, ..Head::default() };
        let tuple = hot.tuple;
        self.reply_marked(tuple, head, self.choices.of(slot).marking);
    }

    /// The connection is over. Its record stays until its handle is closed.
    pub(crate) fn end(&mut self, slot: u32, failure: Option<Failure>) {
        self.unindex(slot);
        let hot = &mut self.flows[slot];
        hot.state = hot.state.after(Step::End);
        hot.failure = failure;
        let cold = std::mem::replace(&mut hot.cold, NO_COLD);
        let orphan = hot.has(flag::ORPHAN);
        if cold != NO_COLD {
            let block = &mut self.colds[cold];
            self.holding -= usize::from(block.holds);
            block.flight.clear(&mut self.records);
            self.ranges.clear(&mut block.held);
            self.colds.remove(cold);
        }
        self.wheel.cancel(slot);
        if orphan {
            self.over.push(slot);
        } else {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6
            //# If the local TCP connection is closed by the remote side due to a FIN or RST received from the
            //# remote side, then the local application MUST be informed whether it closed normally or was
            //# aborted (MUST-12).
            self.happen(slot, if failure.is_some() { Ready::FAILED } else { Ready::FLUSHED });
        }
    }

    /// The one place that arms a flow's timers: whenever something is owed, it is either sent
    /// next, or there is a deadline.
    pub(crate) fn settle(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        if hot.state == State::Closed {
            return;
        }
        if hot.state == State::TimeWait && hot.has(flag::ORPHAN) && !hot.owes_ack() {
            // A smaller record will do.
            let hot = *hot;
            self.end(slot, None);
            return self.begin_wait(now, slot, &hot);
        }
        if !hot.owes_ack() {
            hot.ack_at = Deadline::NONE;
        } else if !hot.has(flag::ACK_NOW) && !hot.ack_at.is_set() && hot.state.is_synchronized() {
            hot.ack_at = Deadline::at(now.after(self.profile.delayed_ack));
        }
        let hot = &self.flows[slot];
        if hot.cold != NO_COLD {
            self.colds[hot.cold].pace.release(now, hot.outstanding() == 0);
        }
        let plan = self.plan(slot);
        match plan {
            Plan::Nothing => {}
            Plan::Starved => {
                self.waiting.push(slot);
                if self.colds.is_full() {
                    self.take_block(now);
                }
            }
            _ => self.ready.push(slot),
        }
        self.cool(slot);
        self.arm_send_timer(now, slot, plan);
        let hot = &self.flows[slot];
        for at in [hot.send_at, hot.ack_at, hot.life_at] {
            if let Some(tick) = at.tick(now) {
                self.wheel.schedule(slot, tick);
            }
        }
    }

    fn arm_send_timer(&mut self, now: Time, slot: u32, plan: Plan) {
        let hot = &mut self.flows[slot];
        if !hot.state.is_synchronized() {
            // Set when the SYN was sent.
            return;
        }
        if hot.outstanding() > 0 {
            if hot.cold != NO_COLD {
                let cold = &self.colds[hot.cold];
                let next = [cold.rto_at, cold.tail_at, cold.reorder_at, cold.pace.held_until()];
                let next = next.into_iter().flatten().min();
                hot.send_at = next.map_or(Deadline::NONE, Deadline::at);
            }
        } else if hot.snd_limit() == hot.snd_nxt {
            hot.backoff = 0;
            let hot = *hot;
            if hot.has(flag::FIN) || hot.window.congestion <= self.restart_window(slot) {
                self.flows[slot].send_at = Deadline::NONE;
            } else if !hot.send_at.is_set() {
                let next = now.plus(self.rto(slot));
                self.flows[slot].send_at = Deadline::at(next);
            }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.6.1
        //# The transmitting host SHOULD send the first zero-window probe when a zero window has existed for
        //# the retransmission timeout period (SHLD- 29) (Section 3.8.1), and SHOULD increase exponentially
        //# the interval between successive probes (SHLD-30).
        } else if plan == Plan::Nothing && !hot.send_at.is_set() {
            let next = now.plus(self.rto(slot));
            let end = self.held_until(slot);
            self.flows[slot].send_at = Deadline::at(end.map_or(next, |end| end.min(next)));
        }
    }
}
