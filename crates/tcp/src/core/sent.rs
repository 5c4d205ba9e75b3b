//! Records of what was sent: when, how often, and what became of it.

use super::blocks::{List, Place, Pool};
use super::flow::Rack;
use super::seq::{Seq, Span};
use crate::time::Time;

/// What became of bytes that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are in the network, or have arrived and that was not reported yet.
    #[default]
    Flying,
    /// The peer has reported them, and may take that back (RFC 2018, 8).
    Sacked,
    /// They have to be sent again.
    Lost,
}

/// Consecutive bytes that were sent at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) span: Span,
    /// When they were sent last.
    pub(crate) at: Time,
    pub(crate) fate: Fate,
    /// Sent more than once: says nothing of the round-trip time (Karn).
    pub(crate) repeated: bool,
    /// What was sent at the same time has a record of its own.
    apart: bool,
}

/// The records of all flows.
pub(crate) type Records = Pool<Sent>;

/// All that one flow has sent and the peer has not acknowledged, without gaps. When there is no room
/// for another record, one covers more than it should: that costs a repetition or a timeout, never
/// data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flight {
    list: List,
    /// Bytes that are thought to be in the network (RFC 6675, "pipe").
    flying: u32,
    sacked: u32,
    lost: u32,
    /// Nothing before is lost.
    lost_from: Seq,
    /// Nothing from here on was sent more than once.
    again_to: Seq,
}

/// What an acknowledgement says was delivered since the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Bytes, cumulatively or selectively acknowledged.
    pub(crate) bytes: u32,
    /// Something was newly selectively acknowledged.
    pub(crate) sacked: bool,
    /// What the acknowledgement says arrived twice.
    pub(crate) duplicate: Option<Span>,
    /// A round-trip time that is not ambiguous (Karn's algorithm; RFC 6298, 3).
    pub(crate) rtt: Option<u32>,
    repeated: bool,
}

impl Flight {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.flying
    }

    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.sacked
    }

    pub(crate) fn first<'a>(&self, records: &'a Records) -> Option<&'a Sent> {
        records.first(&self.list)
    }

    pub(crate) fn last<'a>(&self, records: &'a Records) -> Option<&'a Sent> {
        records.last(&self.list)
    }

    pub(crate) fn clear(&mut self, records: &mut Records) {
        records.clear(&mut self.list);
        (self.flying, self.sacked, self.lost) = (0, 0, 0);
    }

    /// Remembers that bytes were sent. Neighbours share a record if they were sent at the same time.
    pub(crate) fn record(&mut self, records: &mut Records, span: Span, now: Time) {
        if self.list.is_empty() {
            (self.lost_from, self.again_to) = (span.start, span.start);
        }
        let last = records.last_place(&self.list);
        let together =
            |last: &&Sent| last.at == now && last.fate == Fate::Flying && !last.repeated && !last.apart;
        let shared = self.last(records).filter(together).is_some();
        if shared || !records.push(&mut self.list, Sent { span, at: now, ..Sent::default() }) {
            let Some(last) = last else { return };
            if !shared {
                self.turn(records, last, Fate::Flying);
            }
            if let Some(record) = records.get_mut(&self.list, last) {
                (record.span.end, record.at) = (span.end, now);
            }
        }
        self.flying += span.len();
    }

    /// What was sent last shares no record, so that its fate is its own.
    pub(crate) fn keep_apart(&mut self, records: &mut Records, span: Span) {
        self.split(records, span.start);
        let last = records.last_place(&self.list).and_then(|last| records.get_mut(&self.list, last));
        if let Some(last) = last.filter(|last| last.span == span) {
            last.apart = true;
        }
    }

    /// Whether the end of a span is acknowledged, cumulatively or selectively.
    pub(crate) fn has_arrived(&self, records: &Records, span: Span) -> bool {
        let record = records.get(&self.list, self.find(records, span.end - 1));
        record.is_none_or(|record| record.fate == Fate::Sacked || span.end.upto(record.span.start))
    }

    /// Whether exactly this is lost.
    pub(crate) fn has_lost_alone(&self, records: &Records, span: Span) -> bool {
        self.lost == span.len() && self.first_lost(records) == Some(span)
    }

    /// Begins with what was sent before, nobody knows when: lost, or on its way.
    pub(crate) fn adopt(&mut self, records: &mut Records, span: Span, now: Time, is_lost: bool) {
        self.record(records, span, now);
        self.again_to = span.end;
        if let Some(first) = records.get_mut(&self.list, Place::default()) {
            first.repeated = true;
        }
        if is_lost {
            self.turn(records, Place::default(), Fate::Lost);
        }
    }

    /// Remembers that bytes were sent again.
    pub(crate) fn record_again(&mut self, records: &mut Records, span: Span, now: Time) {
        self.split(records, span.start);
        self.split(records, span.end);
        if self.first_lost(records).is_some_and(|first| first.start == span.start) {
            self.lost_from = span.end;
        }
        let mut place = self.find(records, span.start);
        while let Some(record) = records.get_mut(&self.list, place)
            && record.span.start.before(span.end)
        {
            (record.at, record.repeated) = (now, true);
            self.again_to = self.again_to.max(record.span.end);
            self.turn(records, place, Fate::Flying);
            place = records.next(&self.list, place);
        }
    }

    /// Where the record of a byte is.
    fn find(&self, records: &Records, at: Seq) -> Place {
        records.partition(&self.list, |record| record.span.end.upto(at))
    }

    /// The one place where the fate of a record changes.
    fn turn(&mut self, records: &mut Records, place: Place, fate: Fate) {
        let Some(record) = records.get_mut(&self.list, place) else { return };
        let Sent { span, fate: before, .. } = *record;
        record.fate = fate;
        *self.bytes(before) -= span.len();
        *self.bytes(fate) += span.len();
        if fate == Fate::Lost {
            self.lost_from = self.lost_from.min(span.start);
        }
    }

    fn bytes(&mut self, fate: Fate) -> &mut u32 {
        match fate {
            Fate::Flying => &mut self.flying,
            Fate::Sacked => &mut self.sacked,
            Fate::Lost => &mut self.lost,
        }
    }

    /// Makes a record boundary here, if a record covers the place and there is room for another.
    fn split(&mut self, records: &mut Records, at: Seq) {
        let place = self.find(records, at);
        if let Some(&record) = records.get(&self.list, place)
            && record.span.start.before(at)
        {
            let front = Sent { span: Span::new(record.span.start, at), ..record };
            if let Some(back) = records.get_mut(&self.list, place) {
                back.span.start = at;
            }
            if !records.insert(&mut self.list, place, front)
                && let Some(whole) = records.get_mut(&self.list, place)
            {
                *whole = record;
            }
        }
    }

    /// The first bytes that are lost and not sent again.
    pub(crate) fn first_lost(&self, records: &Records) -> Option<Span> {
        if self.lost == 0 {
            return None;
        }
        let mut place = self.find(records, self.lost_from);
        while let Some(record) = records.get(&self.list, place) {
            if record.fate == Fate::Lost {
                return Some(record.span);
            }
            place = records.next(&self.list, place);
        }
        None
    }

    /// Takes an acknowledgement: removes what it covers, and marks what is selectively
    /// acknowledged. Work is bounded: what four blocks newly cover, and no list is longer than its
    /// blocks (CVE-2019-11478).
    pub(crate) fn acknowledge(
        &mut self,
        records: &mut Records,
        rack: &mut Rack,
        (ack, nxt): (Seq, Seq),
        sacks: &[Span],
        now: Time,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        while let Some(&first) = self.first(records)
            && first.span.start.before(ack)
        {
            let gone = Span::new(first.span.start, first.span.end.min(ack));
            if first.fate != Fate::Sacked {
                delivered.deliver(rack, Sent { span: gone, ..first }, now);
            }
            *self.bytes(first.fate) -= gone.len();
            if first.span.end.after(ack) {
                if let Some(rest) = records.get_mut(&self.list, Place::default()) {
                    rest.span.start = ack;
                }
                break;
            }
            records.remove(&mut self.list, Place::default());
        }
        self.lost_from = self.lost_from.max(ack);
        self.again_to = self.again_to.max(ack);
        if let Some(first) = sacks.first() {
            // RFC 2883, 4: the first block reports a duplicate if it is below the cumulative
            // acknowledgement, or inside the second block.
            let inside = sacks.get(1).is_some_and(|second| second.contains(*first));
            let twice = !first.is_empty() && (first.end.upto(ack) || inside);
            delivered.duplicate = twice.then_some(*first);
        }
        for &block in sacks {
            let valid = !block.is_empty() && block.start.after(ack) && block.end.upto(nxt);
            if valid {
                self.sack(records, rack, block, now, &mut delivered);
            }
        }
        if delivered.repeated {
            delivered.rtt = None;
        }
        delivered
    }

    /// The peer has these bytes.
    fn sack(
        &mut self,
        records: &mut Records,
        rack: &mut Rack,
        block: Span,
        now: Time,
        delivered: &mut Delivered,
    ) {
        self.split(records, block.start);
        self.split(records, block.end);
        let mut place = self.find(records, block.start);
        while let Some(&record) = records.get(&self.list, place)
            && record.span.start.before(block.end)
        {
            if record.fate == Fate::Sacked || !block.contains(record.span) {
                place = records.next(&self.list, place);
                continue;
            }
            delivered.sacked = true;
            delivered.deliver(rack, record, now);
            self.turn(records, place, Fate::Sacked);
            place = self.join(records, place);
        }
        // What follows may have been reported before.
        if records.get(&self.list, place).is_some_and(|record| record.fate == Fate::Sacked) {
            self.join(records, place);
        }
    }

    /// Joins a selectively acknowledged record with one before it: when they were sent says nothing any
    /// more. Returns the place behind.
    fn join(&mut self, records: &mut Records, place: Place) -> Place {
        if let Some(before) = records.before(&self.list, place)
            && records.get(&self.list, before).is_some_and(|record| record.fate == Fate::Sacked)
            && let Some(gone) = records.remove(&mut self.list, place)
            && let Some(record) = records.get_mut(&self.list, before)
        {
            record.span.end = gone.span.end;
            record.repeated |= gone.repeated;
            return records.next(&self.list, before);
        }
        records.next(&self.list, place)
    }

    /// Marks what is `overdue`, which returns when each record that is in the network will be, or
    /// `None` if it and all that was sent after it cannot be yet. Returns whether anything is newly lost,
    /// and when the last of the others will be.
    pub(crate) fn lose(
        &mut self,
        records: &mut Records,
        now: Time,
        overdue: impl Fn(&Sent) -> Option<Time>,
    ) -> (bool, Option<Time>) {
        let (mut found, mut next) = (false, None);
        let mut place = Place::default();
        while let Some(record) = records.get(&self.list, place) {
            if record.fate == Fate::Flying {
                match overdue(record) {
                    Some(at) if at <= now => {
                        self.turn(records, place, Fate::Lost);
                        found = true;
                    }
                    Some(at) => next = next.max(Some(at)),
                    // Sent in the order of their numbers, but for what was sent again.
                    None if !record.span.start.before(self.again_to) => break,
                    None => {}
                }
            }
            place = records.next(&self.list, place);
        }
        (found, next)
    }

    /// The first `most` bytes are lost. Returns false if they are already.
    pub(crate) fn lose_first(&mut self, records: &mut Records, most: u32) -> bool {
        let Some(&first) = self.first(records) else { return false };
        if first.fate == Fate::Lost {
            return false;
        }
        self.split(records, first.span.start + most);
        self.turn(records, Place::default(), Fate::Lost);
        true
    }

    /// What was thought to be lost, and was not sent again since, is on its way.
    pub(crate) fn fly_again(&mut self, records: &mut Records) {
        records.for_each(&self.list, |record| {
            if record.fate == Fate::Lost {
                record.fate = Fate::Flying;
            }
        });
        self.flying += std::mem::take(&mut self.lost);
    }

    /// The peer's reports do not hold any more.
    pub(crate) fn forget_sacks(&mut self, records: &mut Records) {
        records.for_each(&self.list, |record| {
            if record.fate == Fate::Sacked {
                record.fate = Fate::Flying;
            }
        });
        self.flying += std::mem::take(&mut self.sacked);
    }
}

impl Delivered {
    fn deliver(&mut self, rack: &mut Rack, record: Sent, now: Time) {
        self.bytes += record.span.len();
        self.repeated |= record.repeated;
        let rtt = now.micros().saturating_sub(record.at.micros()).clamp(1, u32::MAX.into()) as u32;
        if !record.repeated && self.rtt.is_none() {
            self.rtt = Some(rtt);
        }
        rack.delivered(&record, rtt);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of each fate, by what the records say.
    fn counted(flight: &Flight, records: &Records) -> [u32; 3] {
        [Fate::Flying, Fate::Sacked, Fate::Lost].map(|fate| {
            let those = records.iter(&flight.list).filter(|record| record.fate == fate);
            those.map(|record| record.span.len()).sum()
        })
    }

    proptest! {
        /// Whatever happens, also without room for records: they cover everything that is outstanding,
        /// what is lost is found, and sending it again comes to an end.
        #[test]
        fn records_cover_what_is_outstanding(
            extra in 0usize..4,
            steps in prop::collection::vec((0u8..8, 0u32..60, 1u32..6), 1..200),
        ) {
            let mut records = Records::new(1, extra);
            let mut flight = Flight::default();
            let mut rack = Rack::default();
            let (mut una, mut nxt) = (Seq(u32::MAX - 5_000), Seq(u32::MAX - 5_000));
            let mut now = Time::from_micros(1);
            for (what, at, len) in steps {
                let place = (una + 500 * at).min(nxt);
                let span = Span::new(place, (place + 500 * len).min(nxt));
                match what {
                    0..=2 => {
                        flight.record(&mut records, Span::new(nxt, nxt + 1_000 * len), now);
                        nxt = nxt + 1_000 * len;
                    }
                    3 | 4 => {
                        flight.acknowledge(&mut records, &mut rack, (una, nxt), &[span], now);
                    }
                    5 => {
                        flight.acknowledge(&mut records, &mut rack, (place, nxt), &[], now);
                        una = place;
                    }
                    6 => {
                        let after = now;
                        flight.lose(&mut records, now, |record| (record.at < after).then_some(after));
                    }
                    _ => if let Some(lost) = flight.first_lost(&records) {
                        let len = lost.len().min(1_000);
                        flight.record_again(&mut records, Span::new(lost.start, lost.start + len), now);
                    }
                }
                now = now.plus(u64::from(at % 2));
                let mut end = una;
                for record in records.iter(&flight.list) {
                    prop_assert_eq!(record.span.start, end);
                    prop_assert!(!record.span.is_empty());
                    end = record.span.end;
                }
                prop_assert_eq!(end, nxt);
                prop_assert_eq!([flight.flying, flight.sacked, flight.lost], counted(&flight, &records));
                prop_assert_eq!(flight.first_lost(&records).is_some(), flight.lost > 0);
            }
            while let Some(lost) = flight.first_lost(&records) {
                let before = flight.lost;
                let len = lost.len().min(1_000);
                flight.record_again(&mut records, Span::new(lost.start, lost.start + len), now);
                prop_assert!(flight.lost < before);
            }
        }
    }
}
