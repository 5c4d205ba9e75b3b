//! What the network says of a flow (RFC 9293, 3.9.2.2; RFC 5927).

use std::time::Duration;

use super::Stack;
use super::flow::{NO_COLD, flag};
use super::index::Kind;
use super::seq::Seq;
use super::state::State;
use super::tuple::Tuple;
use crate::control::Control;
use crate::event::Failure;
use crate::time::Time;

/// The least path MTU of IPv4 that is accepted, as in Linux (min_pmtu).
const MTU_BELIEVED: u16 = 552;
/// After this time larger packets are tried again (RFC 1191, 6.3).
const NARROW: Duration = Duration::from_secs(600);

/// Timeouts in a row after which larger segments are suspected to vanish on the way, and errors about them, too;
/// and after which smaller ones vanish as well (RFC 4821, 7.7).
const BLACK_HOLE: u8 = 3;
const SILENCE: u8 = 5;
/// Payload that nearly every path takes (RFC 4821, 7.2), and that of the least path of IPv6.
const SAFE_MSS: u16 = 1_024;
const SAFE_MSS_V6: u16 = 1_220;

/// An ICMP error about a segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Protocol or port unreachable: the peer's host says that nobody is there.
    Refused,
    /// Administratively prohibited.
    Hard,
    /// Net or host unreachable, time exceeded, parameter problem.
    Soft,
    /// The packet was too big; the path takes this many bytes.
    TooBig(u16),
}

fn second(time: Time) -> u32 {
    (time.micros() / 1_000_000) as u32
}

impl<C: Control> Stack<C> {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
    //# TCP implementations MUST act on an ICMP error message passed up from the IP layer, directing it to the
    //# connection that created the error (MUST-54).
    /// An ICMP error that quotes a segment of ours with this sequence number. Returns whether there
    /// is such a connection.
    pub(crate) fn trouble(&mut self, now: Time, tuple: &Tuple, seq: Seq, trouble: Trouble) -> bool {
        let found = self.find(self.secret.hash(tuple), tuple);
        if let Some((Kind::Flow, slot)) = found {
            self.trouble_of(now, slot, seq, trouble);
        }
        found.is_some()
    }

    fn trouble_of(&mut self, now: Time, slot: u32, seq: Seq, trouble: Trouble) {
        let hot = &self.flows[slot];
        // RFC 5927, 4.1: only about something that is outstanding.
        let outstanding = hot.snd_una.upto(seq) && seq.before(hot.snd_nxt);
        if !outstanding {
            return;
        }
        match trouble {
            // RFC 5927, 5: hard errors end a connection only before it is open, since anybody can
            // forge them (MUST-56 of RFC 9293: soft ones never do).
            Trouble::Refused | Trouble::Hard
                if self.icmp_ends_attempts && matches!(hot.state, State::SynSent | State::SynReceived) =>
            {
                let refused = trouble == Trouble::Refused;
                self.end(slot, Some(if refused { Failure::Refused } else { Failure::Unreachable }));
            }
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.8
            //# There MUST be a mechanism for reporting soft TCP error conditions to the application (MUST-47).
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
            //# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST NOT
            //# abort the connection (MUST-56), and it SHOULD make the information available to the
            //# application (SHLD-25).
            Trouble::Refused => self.report(slot, Failure::Refused),
            Trouble::Hard | Trouble::Soft => self.report(slot, Failure::Unreachable),
            Trouble::TooBig(mtu) => self.shrink(now, slot, mtu),
        }
    }

    /// The path takes less (RFC 1191, RFC 8201): what is outstanding is cut smaller and sent again.
    fn shrink(&mut self, now: Time, slot: u32, mtu: u16) {
        let hot = &mut self.flows[slot];
        let headers = if hot.tuple.is_v6() { 60 } else { 40 };
        // Anybody can say that the path takes next to nothing: less than this is not believed.
        let mss = mtu.max(MTU_BELIEVED).saturating_sub(headers);
        // RFC 8201, 4: no path of IPv6 takes less than 1,280, and who says so is not believed.
        if mss >= hot.mss || hot.tuple.is_v6() && mtu < 1_280 {
            return;
        }
        self.narrow(now, slot, mss);
        self.settle(now, slot);
    }

    fn narrow(&mut self, now: Time, slot: u32, mss: u16) {
        let hot = &mut self.flows[slot];
        hot.mss = mss;
        self.lasting[slot as usize].narrow_until = second(now.after(NARROW));
        if hot.cold != NO_COLD {
            let flight = &mut self.colds[hot.cold].flight;
            flight.lose(&mut self.records, now, |_| Some(now));
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
        } else if hot.backoff == SILENCE && hot.mss == safe {
            self.lasting[slot as usize].narrow_until = 0;
            self.flows[slot].mss = self.lasting[slot as usize].mss;
        }
    }

    /// Tries larger packets again.
    pub(crate) fn widen(&mut self, now: Time, slot: u32) {
        let lasting = &mut self.lasting[slot as usize];
        if lasting.narrow_until != 0 && lasting.narrow_until <= second(now) {
            lasting.narrow_until = 0;
            self.flows[slot].mss = lasting.mss;
        }
    }
}
