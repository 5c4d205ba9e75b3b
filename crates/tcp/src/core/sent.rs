//! Records of what was sent: when, how often, and what became of it.

use super::flow::{Cold, SENT_RECORDS, Sent};
use super::planted::{Bug, planted};
use super::seq::{Seq, Span};
use crate::time::Time;

/// What an acknowledgement says was delivered since the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Bytes, cumulatively or selectively acknowledged.
    pub(crate) bytes: u32,
    /// Something was newly selectively acknowledged.
    pub(crate) sacked: bool,
    /// The acknowledgement reports bytes that arrived twice.
    pub(crate) duplicate: bool,
    /// A round-trip time that is not ambiguous (Karn's algorithm; RFC 6298, 3).
    pub(crate) rtt: Option<u64>,
    repeated: bool,
}

impl Cold {
    /// Remembers that bytes were sent. Neighbours that were sent within a moment share a record,
    /// with the later time: a loss is then found a little later, never too early.
    pub(crate) fn record(&mut self, span: Span, now: Time, merge_within: u64) {
        if let Some(last) = self.sent.last_mut()
            && last.span.end == span.start
            && !last.sacked
            && !last.lost
            && !last.repeated
            && now.micros().saturating_sub(last.at.micros()) <= merge_within
        {
            last.span.end = span.end;
            last.at = now;
            return;
        }
        self.make_record_room();
        self.sent.push(Sent { span, at: now, ..Sent::default() });
    }

    /// Remembers that bytes were sent again.
    pub(crate) fn record_again(&mut self, span: Span, now: Time) {
        self.split(span.start);
        self.split(span.end);
        for record in self.sent.iter_mut().filter(|record| span.contains(record.span)) {
            record.at = now;
            record.repeated = true;
            record.lost = false;
        }
    }

    /// Makes a record boundary here, if a record covers the place.
    fn split(&mut self, at: Seq) {
        let inside = |record: &Sent| record.span.start.before(at) && record.span.end.after(at);
        if !self.sent.iter().any(inside) {
            return;
        }
        self.make_record_room();
        if let Some(index) = self.sent.iter().position(inside) {
            let mut front = self.sent[index];
            front.span.end = at;
            self.sent[index].span.start = at;
            self.sent.insert(index, front);
        }
    }

    /// Sees to a free place. Equal neighbours merge; else the last two, and what the peer has
    /// selectively acknowledged of them is forgotten, or that one is lost: it costs a repetition or a
    /// timeout, never data. What was sent again must not become lost by it, or it would be sent for
    /// ever.
    fn make_record_room(&mut self) {
        if !self.sent.is_full() {
            return;
        }
        let equal = |pair: &[Sent]| {
            (pair[0].sacked, pair[0].lost, pair[0].repeated)
                == (pair[1].sacked, pair[1].lost, pair[1].repeated)
        };
        let at = self.sent.windows(2).position(equal).unwrap_or(SENT_RECORDS - 2);
        let second = self.sent.remove(at + 1);
        let first = &mut self.sent[at];
        first.span.end = second.span.end;
        first.at = first.at.max(second.at);
        first.sacked &= second.sacked;
        first.lost &= second.lost;
        first.repeated |= second.repeated;
    }

    /// Bytes that are thought to be in the network (RFC 6675, "pipe").
    pub(crate) fn in_flight(&self) -> u32 {
        let flying = self.sent.iter().filter(|record| !record.sacked && !record.lost);
        flying.map(|record| record.span.len()).sum()
    }

    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.sent.iter().filter(|record| record.sacked).map(|record| record.span.len()).sum()
    }

    /// The first bytes that are lost and not sent again.
    pub(crate) fn first_lost(&self) -> Option<Span> {
        self.sent.iter().find(|record| record.lost).map(|record| record.span)
    }

    /// Takes an acknowledgement: removes what it covers, and marks what is selectively
    /// acknowledged. Work is bounded: four blocks over `SENT_RECORDS` records (CVE-2019-11478).
    pub(crate) fn acknowledge(&mut self, ack: Seq, nxt: Seq, sacks: &[Span], now: Time) -> Delivered {
        let mut delivered = Delivered::default();
        while let Some(first) = self.sent.first().copied()
            && first.span.start.before(ack)
        {
            let gone = Span::new(first.span.start, first.span.end.min(ack));
            if !first.sacked {
                self.deliver(Sent { span: gone, ..first }, now, &mut delivered);
            }
            if first.span.end.after(ack) {
                self.sent[0].span.start = ack;
                break;
            }
            self.sent.drain(0, 1);
        }
        if let Some(first) = sacks.first() {
            // RFC 2883, 4: the first block reports a duplicate if it is below the cumulative
            // acknowledgement, or inside the second block.
            let inside = sacks.get(1).is_some_and(|second| second.contains(*first));
            delivered.duplicate = !first.is_empty() && (first.end.upto(ack) || inside);
        }
        for block in sacks {
            let valid = !block.is_empty() && block.start.after(ack) && block.end.upto(nxt);
            if !valid {
                continue;
            }
            self.split(block.start);
            self.split(block.end);
            for index in 0..self.sent.len() {
                let record = self.sent[index];
                if !record.sacked && block.contains(record.span) {
                    self.sent[index].sacked = true;
                    self.sent[index].lost = false;
                    delivered.sacked = true;
                    self.deliver(record, now, &mut delivered);
                }
            }
        }
        if delivered.repeated {
            delivered.rtt = None;
        }
        delivered
    }

    fn deliver(&mut self, record: Sent, now: Time, delivered: &mut Delivered) {
        delivered.bytes += record.span.len();
        delivered.repeated |= record.repeated && !planted(Bug::RttFromRetransmission);
        let rtt = now.micros().saturating_sub(record.at.micros());
        if !record.repeated && delivered.rtt.is_none() {
            delivered.rtt = Some(rtt.max(1));
        }
        self.rack.delivered(&record, rtt.max(1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the records are, sending a segment of what is lost leaves less to be sent.
        #[test]
        fn sending_again_comes_to_an_end(
            records in prop::collection::vec((1u32..6, 1u8..4), SENT_RECORDS),
        ) {
            let mut cold = Cold::default();
            let mut start = Seq(u32::MAX - 5);
            let mut kind = 0;
            for (segments, step) in records {
                let span = Span::new(start, start + 1_000 * segments);
                // Neighbours differ: none merge without a loss.
                kind = (kind + step) % 4;
                let (sacked, lost, repeated) = (kind == 1, kind == 2, kind == 3);
                cold.sent.push(Sent { span, sacked, lost, repeated, ..Sent::default() });
                start = span.end;
            }
            let lost = |cold: &Cold| -> u32 {
                cold.sent.iter().filter(|record| record.lost).map(|record| record.span.len()).sum()
            };
            while let Some(first) = cold.first_lost() {
                let before = lost(&cold);
                cold.record_again(Span::new(first.start, first.start + 1_000), Time::from_micros(1));
                prop_assert!(lost(&cold) < before, "{:?}", &cold.sent[..]);
            }
        }
    }
}
