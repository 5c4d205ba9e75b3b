//! What the network says of a flow (RFC 9293, 3.9.2.2; RFC 5927).

use super::Stack;
use super::index::Kind;
use super::seq::Seq;
use super::state::State;
use super::tuple::Tuple;
use crate::control::Control;
use crate::event::Failure;
use crate::time::Time;

/// The least path MTU of IPv4 that is accepted, as in Linux (min_pmtu).
const MTU_BELIEVED: u16 = 552;
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
}
