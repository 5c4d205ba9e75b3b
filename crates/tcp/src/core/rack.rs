//! RACK-TLP (RFC 8985): losses are found by time, not by counting duplicates.

use super::flow::{Cold, Hot, Rack, TailProbe, flag};
use super::sent::{Delivered, Fate, Flight, Records, Sent};
use super::seq::{Seq, Span};
use crate::control::Window;
use crate::time::Time;

/// Duplicate acknowledgements, or segments above a gap, that say that something is lost
/// (RFC 5681, 3.2).
pub(crate) const DUPLICATES: u32 = 3;

/// Recoveries for which a wider reordering window is kept (RFC 8985, 6.2, step 4).
const PERSIST: u8 = 16;

/// The order in which segments were sent: by time, then by number (RFC 8985, 5.2).
fn sent_after(at: Time, end: Seq, other_at: Time, other_end: Seq) -> bool {
    at > other_at || (at == other_at && end.after(other_end))
}

impl Rack {
    /// Whether anything was delivered.
    fn has_started(&self) -> bool {
        self.rtt > 0
    }

    /// A segment was delivered (RFC 8985, 6.2, steps 1 to 3).
    pub(crate) fn delivered(&mut self, record: &Sent, rtt: u32) {
        let end = record.span.end;
        if record.repeated && self.min_rtt > 0 && rtt < self.min_rtt {
            // The acknowledgement is of the first transmission, not of this one.
            return;
        }
        if !record.repeated && (self.min_rtt == 0 || rtt < self.min_rtt) {
            self.min_rtt = rtt;
        }
        if !self.has_started() {
            self.fack = end;
            (self.xmit_at, self.end, self.rtt) = (record.at, end, rtt);
        }
        if sent_after(record.at, end, self.xmit_at, self.end) {
            (self.xmit_at, self.end, self.rtt) = (record.at, end, rtt);
        }
        if end.after(self.fack) {
            self.fack = end;
        } else if end.before(self.fack) && !record.repeated {
            self.reordering_seen = true;
        }
    }

    /// Adapts to a report of a needless repetition, once a round trip (RFC 8985, 6.2, step 4).
    pub(crate) fn adapt(&mut self, ack: Seq, nxt: Seq, duplicate: bool) {
        self.in_dsack_round &= self.dsack_round.after(ack);
        if duplicate && !self.in_dsack_round {
            (self.dsack_round, self.in_dsack_round) = (nxt, true);
            self.wnd_mult = self.wnd_mult.saturating_add(1);
            self.wnd_persist = PERSIST;
            self.reordering_seen = true;
        }
    }

    /// A recovery is over.
    pub(crate) fn recovered(&mut self) {
        self.wnd_persist = self.wnd_persist.saturating_sub(1);
        if self.wnd_persist == 0 {
            self.wnd_mult = 1;
        }
    }
}

impl Rack {
    /// How long a segment may be overtaken before it counts as lost.
    fn reordering_window(&self, flight: &Flight, recovers: bool, hot: &Hot) -> u64 {
        if !self.reordering_seen {
            let sacked = flight.sacked_bytes() / u32::from(hot.mss).max(1);
            if recovers || sacked >= DUPLICATES {
                return 0;
            }
        }
        let wider = u64::from(self.wnd_mult) * u64::from(self.min_rtt) / 4;
        wider.min(u64::from(hot.srtt))
    }
}

impl<M> Cold<M> {
    /// Marks what was sent well before something that has been delivered (RFC 8985, 6.2, step 5),
    /// and notes when to look again. Returns whether anything is newly lost.
    fn detect_losses(&mut self, records: &mut Records, rack: &Rack, hot: &Hot, now: Time) -> bool {
        self.reorder_at = None;
        if !rack.has_started() {
            return false;
        }
        let window = rack.reordering_window(&self.flight, self.recovery.is_some(), hot);
        let overdue = |record: &Sent| {
            let before = sent_after(rack.xmit_at, rack.end, record.at, record.span.end);
            before.then(|| record.at.plus(u64::from(rack.rtt) + window))
        };
        let (found, next) = self.flight.lose(records, now, overdue);
        self.reorder_at = next;
        found
    }

    /// The same, but for a segment that was sent to find out whether it arrives: its loss says nothing of
    /// congestion (RFC 4821, 7.6.2).
    pub(crate) fn detect_congestion(
        &mut self,
        records: &mut Records,
        rack: &Rack,
        hot: &Hot,
        now: Time,
    ) -> bool {
        let found = self.detect_losses(records, rack, hot, now);
        found && !self.search.is_some_and(|search| self.flight.has_lost_alone(records, search.span))
    }

    /// The retransmission timer expired (RFC 8985, 6.3; RFC 6298, 5.4): the first segment is lost,
    /// and all that were sent long enough ago. If the first was selectively acknowledged, the peer
    /// has dropped what it held (RFC 2018, 8), and none of its reports hold.
    pub(crate) fn lose_on_timeout(&mut self, records: &mut Records, rack: &Rack, hot: &Hot, now: Time) {
        let Some(&first) = self.flight.first(records) else { return };
        if first.fate == Fate::Sacked {
            self.flight.forget_sacks(records);
        }
        let wait = u64::from(rack.rtt.max(hot.srtt))
            + rack.reordering_window(&self.flight, self.recovery.is_some(), hot);
        let overdue = |record: &Sent| {
            let is_first = record.span.start == first.span.start;
            Some(if is_first { now } else { record.at.plus(wait) })
        };
        self.flight.lose(records, now, overdue);
    }

    /// When a tail loss probe is due (RFC 8985, 7.2): two round trips after the last segment, and
    /// longer if the peer may delay the acknowledgement of a single one; instead of the
    /// retransmission timer, not after it.
    pub(crate) fn schedule_tail_probe(&mut self, hot: &Hot, now: Time, max_ack_delay: u64) {
        let eligible = hot.has(flag::SACK)
            && self.recovery.is_none()
            && self.tail_probe.is_none()
            && self.flight.sacked_bytes() == 0
            && !self.flight.is_empty();
        self.tail_at = None;
        let Some(rto_at) = self.rto_at else { return };
        if eligible {
            let mut wait = 2 * u64::from(hot.srtt);
            if hot.srtt == 0 {
                wait = 1_000_000;
            } else if self.flight.in_flight() <= u32::from(hot.mss) {
                wait += max_ack_delay;
            }
            self.tail_at = Some(now.plus(wait.max(1_000)).min(rto_at));
        }
    }

    /// Whether an acknowledgement says that the last reduction of the window was needless; what was before
    /// then. `echo` is the timestamp that it echoes, `twice` what it says arrived twice.
    pub(crate) fn needless(
        &mut self,
        ack: Seq,
        acked: u32,
        echo: Option<u32>,
        twice: Option<Span>,
    ) -> Option<(Window, M)>
    where
        M: Copy,
    {
        let undo = self.undo.as_mut()?;
        let early = echo.filter(|_| acked > 0).and_then(|echo| undo.acknowledged(ack, echo));
        early.or_else(|| undo.arrived_twice(twice?))
    }

    /// What an acknowledgement says of a tail loss probe (RFC 8985, 7.4). Returns true if the
    /// probe has repaired a loss, to which congestion control must respond.
    pub(crate) fn settle_tail_probe(&mut self, ack: Seq, delivered: &Delivered, pure: bool) -> bool {
        let Some(TailProbe { end, is_retransmission }) = self.tail_probe else { return false };
        if ack.before(end) {
            return false;
        }
        if !is_retransmission || delivered.duplicate.is_some() {
            self.tail_probe = None;
        } else if ack.after(end) {
            self.tail_probe = None;
            return true;
        } else if pure && delivered.bytes == 0 && !delivered.sacked {
            // A duplicate acknowledgement without SACK: both copies arrived.
            self.tail_probe = None;
        }
        false
    }
}
