//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.

use super::flow::{Lasting, NO_COLD, ecn, flag};
use super::wire::{Flags, Head};
use super::{Segment, Stack};
use crate::control::Control;

impl<C: Control> Stack<C> {
    /// Whether the SYN of a peer asks for it (RFC 3168, 6.1.1).
    pub(crate) fn asks_for_ecn(head: &Head) -> bool {
        head.flags.has(Flags::ECE.with(Flags::CWR))
    }

    /// Takes the marks of an acceptable segment.
    pub(crate) fn on_marks(&mut self, slot: u32, segment: &Segment<'_>, head: &Head) {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.2
        //# A TCP endpoint SHOULD implement ECN as described in RFC 3168 (SHLD- 8).
        let hot = &mut self.flows[slot];
        if !hot.has_ecn(ecn::ON) {
            return;
        }
        if segment.len > 0 {
            // RFC 3168, 6.1.3: the echo goes on until the peer says that it has reduced its window.
            if head.flags.has(Flags::CWR) {
                hot.clear_ecn(ecn::ECHO);
            }
            if segment.marked {
                hot.set_ecn(ecn::ECHO);
                hot.set(flag::ACK_NOW);
            }
        }
        if head.flags.has(Flags::ECE) {
            self.on_echo(slot, head);
        }
    }

    /// RFC 3168, 6.1.2: as if something was lost, once a round trip, and nothing is sent again.
    fn on_echo(&mut self, slot: u32, head: &Head) {
        let hot = &mut self.flows[slot];
        if hot.cold == NO_COLD {
            return;
        }
        let cold = &mut self.colds[hot.cold];
        let again = cold.reduced_until.is_some_and(|until| until.after(head.ack));
        if again || cold.recovery.is_some() {
            return;
        }
        let Lasting { memory, pipe, .. } = &mut self.lasting[slot as usize];
        let flight = cold.flight.in_flight();
        pipe.validate(&mut hot.window, flight);
        self.control.congested(&mut hot.window, memory, flight, hot.mss.into());
        cold.reduced_until = Some(hot.snd_nxt);
        hot.set_ecn(ecn::REDUCED);
    }
}
