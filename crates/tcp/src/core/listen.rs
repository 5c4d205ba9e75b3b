//! Listeners and half-open connections.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::challenges::Challenges;
use super::flow::flag;
use super::index::Kind;
use super::seq::Seq;
use super::tuple::Tuple;
use super::wire::{Flags, Head, Timestamps};
use super::{Stack, Verdict};
use crate::config::Marking;
use crate::control::Control;
use crate::event::{Answer, Ask, Event, Listener, Reason};
use crate::time::Time;

/// Connections for which a listener is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
    //# The optional "local IP address" parameter MUST be supported to allow the specification of the local IP
    //# address (MUST-43).
    /// To this address; to every address of the host if `None`.
    pub address: Option<IpAddr>,
    /// To this port; to every port if `None`.
    pub port: Option<u16>,
}

impl Pattern {
    fn matches(&self, tuple: &Tuple) -> bool {
        let local = tuple.local();
        self.address.is_none_or(|address| address == local.ip())
            && self.port.is_none_or(|port| port == local.port())
    }

    /// A listener for a port is found before one for an address, and both before one for less.
    fn precision(&self) -> u8 {
        u8::from(self.port.is_some()) * 2 + u8::from(self.address.is_some())
    }
}

/// A listener.
pub(crate) struct Listening {
    pub(crate) pattern: Pattern,
    /// Whether the program is asked about each SYN.
    pub(crate) ask: bool,
    /// Connections that wait to be accepted, at most.
    pub(crate) backlog: usize,
    pub(crate) accepted: VecDeque<u32>,
    /// Of its connections, until they have another one.
    pub(crate) marking: Marking,
    /// The largest segment of its connections.
    pub(crate) max_segment: u16,
}

/// The least payload of a segment that a peer can make us send: smaller ones would cost more to
/// process than they carry (CVE-2019-11479).
pub(crate) const MSS_MIN: u16 = 216;

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
//# Note that a TCP implementation MUST keep track of whether a connection has reached SYN-RECEIVED state as
//# the result of a passive OPEN or an active OPEN (MUST-11).
/// A connection whose SYN has arrived (SYN-RECEIVED): much smaller than a flow, so that a flood
/// of SYNs costs little (RFC 4987, 3.4).
#[derive(Clone, Copy)]
pub(crate) struct Syn {
    pub(crate) tuple: Tuple,
    pub(crate) listener: u32,
    pub(crate) irs: Seq,
    pub(crate) iss: Seq,
    pub(crate) ts_recent: u32,
    pub(crate) ts_offset: u32,
    pub(crate) sent_at: Time,
    pub(crate) mss: u16,
    pub(crate) scale: Option<u8>,
    /// `flag::TIMESTAMPS` and `flag::SACK`.
    pub(crate) flags: u16,
    /// It asks for explicit congestion notification.
    pub(crate) ecn: bool,
    pub(crate) retries: u8,
    /// The peer's SYN came twice: which of our answers arrived is not known.
    pub(crate) ambiguous: bool,
    /// As in a flow.
    pub(crate) challenges: Challenges,
    /// The program has not answered yet.
    pub(crate) asked: bool,
}

//= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
//# If an MSS Option is not received at connection setup, TCP implementations MUST assume a default send MSS
//# of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
/// The largest segment that a peer takes (RFC 9293, MUST-15: 536 and 1,220 by default).
pub(crate) fn peer_mss(head: &Head, tuple: &Tuple) -> u16 {
    head.mss.unwrap_or(if tuple.is_v6() { 1220 } else { 536 }).max(MSS_MIN)
}

impl<C: Control> Stack<C> {
    /// The most precise listener for a tuple. There are few, and only SYNs ask.
    pub(crate) fn listener_for(&self, tuple: &Tuple) -> Option<u32> {
        self.listeners
            .slots()
            .filter(|&slot| self.listeners[slot].pattern.matches(tuple))
            .max_by_key(|&slot| self.listeners[slot].pattern.precision())
    }

    /// The largest segment of a listener's connection.
    pub(crate) fn listener_mss(&self, listener: u32, tuple: &Tuple) -> u16 {
        self.path_mss(tuple).min(self.listeners[listener].max_segment)
    }

    /// A SYN for a listener (RFC 9293, 3.10.7.2). What comes with it "should be queued" there; here it
    /// is dropped and comes again, since a flood of forged SYNs must not fill memory (RFC 4987,
    /// 3.4). `after` is the last sequence number of a
    /// connection in TIME_WAIT that it replaces.
    pub(crate) fn on_syn(
        &mut self,
        now: Time,
        tuple: Tuple,
        head: &Head,
        listener: u32,
        after: Option<Seq>,
    ) -> Verdict {
        let Listening { ask, backlog, ref accepted, .. } = self.listeners[listener];
        if accepted.len() >= backlog {
            return self.refuse(Reason::Backlog);
        }
        let mut flags = 0;
        if head.timestamps.is_some() && self.offers.timestamps {
            flags |= flag::TIMESTAMPS;
        }
        if head.sack_permitted && self.offers.sack {
            flags |= flag::SACK;
        }
        let mut syn = Syn {
            tuple,
            listener,
            irs: head.seq,
            iss: Seq(0),
            ts_recent: head.timestamps.map_or(0, |stamps| stamps.value),
            ts_offset: self.secret.timestamp_offset(&tuple),
            sent_at: now,
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.7.1
            //# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS", MUST
            //# be the smaller (MUST-16) of the send MSS (that reflects the available reassembly buffer size
            //# at the remote host, the EMTU_R [19]) and the largest transmission size permitted by the IP
            //# layer (EMTU_S [19]):
            mss: peer_mss(head, &tuple).min(self.listener_mss(listener, &tuple)),
            scale: head.scale.filter(|_| self.offers.scale),
            flags,
            ecn: Self::asks_for_ecn(head),
            retries: 0,
            ambiguous: false,
            challenges: Challenges::default(),
            asked: ask,
        };
        if self.syns.is_full() {
            if !ask {
                return self.answer_with_cookie(now, syn);
            }
            self.evict_half_open();
        }
        syn.iss = self.secret.initial_sequence(now, &tuple);
        if let Some(after) = after
            && syn.iss.upto(after)
        {
            // RFC 9293, MAY-2: above everything that the earlier connection sent.
            syn.iss = after + 128_000;
        }
        let Some(slot) = self.syns.insert(syn) else { return self.refuse(Reason::Backlog) };
        self.index.insert(self.secret.hash(&tuple), Kind::Syn, slot);
        if ask {
            // Each half-open connection asks once, so the queue is bounded by their table.
            self.asks.push_back(slot);
            let until = now.after(self.profile.ask).tick_after();
            self.wheel.schedule(self.syn_owner(slot), until);
        } else {
            self.send_syn_ack(now, slot);
        }
        Verdict::Nothing
    }

    /// Sends a SYN-ACK, and sees to its repetition.
    pub(crate) fn send_syn_ack(&mut self, now: Time, slot: u32) {
        let head = self.syn_ack(now, &self.syns[slot]);
        let syn = &mut self.syns[slot];
        syn.sent_at = now;
        let (tuple, listener) = (syn.tuple, syn.listener);
        let wait = self.profile.rto_initial * (1 << syn.retries.min(6));
        let tick = now.after(wait.min(self.profile.rto_max)).tick_after();
        let owner = self.syn_owner(slot);
        // An earlier node stays from the question to the program.
        self.wheel.cancel(owner);
        self.wheel.schedule(owner, tick);
        self.reply_marked(tuple, head, self.listeners[listener].marking);
    }

    /// Answers a SYN that came again. It is repeated when it would have been, or a peer could keep the
    /// place for ever.
    pub(crate) fn repeat_syn_ack(&mut self, now: Time, slot: u32) {
        let head = self.syn_ack(now, &self.syns[slot]);
        let most = self.challenges_now();
        let syn = &mut self.syns[slot];
        syn.ambiguous = true;
        let (tuple, listener) = (syn.tuple, syn.listener);
        if syn.challenges.may_answer(now, most) {
            self.reply_marked(tuple, head, self.listeners[listener].marking);
        }
    }

    pub(crate) fn syn_ack(&self, now: Time, syn: &Syn) -> Head {
        Head {
            seq: syn.iss,
            ack: syn.irs + 1,
            flags: Flags::SYN.with(Flags::ACK).with(if syn.ecn { Flags::ECE } else { Flags::default() }),
            window: self.first_window() as u16,
            mss: self.offers.mss.then(|| self.listener_mss(syn.listener, &syn.tuple)),
            // RFC 7323, 2.2 and 3.2, RFC 2018, 2: only what the SYN offered.
            scale: syn.scale.map(|_| self.window_scale()),
            sack_permitted: syn.flags & flag::SACK != 0,
            timestamps: (syn.flags & flag::TIMESTAMPS != 0)
                .then(|| Timestamps { value: timestamp(now, syn.ts_offset), echo: syn.ts_recent }),
            ..Head::default()
        }
    }

    /// The timer of a half-open connection.
    pub(crate) fn on_syn_timer(&mut self, now: Time, slot: u32) {
        let syn = &mut self.syns[slot];
        if syn.asked || syn.retries >= self.profile.syn_ack_retries {
            return self.forget_syn(slot);
        }
        syn.retries += 1;
        self.send_syn_ack(now, slot);
    }

    pub(crate) fn forget_syn(&mut self, slot: u32) {
        let hash = self.secret.hash(&self.syns[slot].tuple);
        self.index.remove(hash, Kind::Syn, slot);
        self.wheel.cancel(self.syn_owner(slot));
        if self.syns[slot].asked {
            self.asks.retain(|&asked| asked != slot);
        }
        self.syns.remove(slot);
    }

    /// Makes room in a full table. The hand goes round, so the oldest are hit first.
    fn evict_half_open(&mut self) {
        let bound = self.syns.bound() as u32;
        let slot = self.syn_hand % bound.max(1);
        self.syn_hand = slot + 1;
        if self.syns.is_taken(slot) {
            self.forget_syn(slot);
        }
    }

    /// The next question to the program.
    pub(crate) fn next_ask(&mut self) -> Option<Event> {
        let slot = self.asks.pop_front()?;
        let ask = Ask { slot, generation: self.syns.generation(slot) };
        Some(ask.event(&self.syns[slot].tuple))
    }

    /// The program's answer. Returns false if the SYN is no longer there.
    pub(crate) fn answer(&mut self, now: Time, ask: Ask, answer: Answer) -> bool {
        let Ask { slot, generation } = ask;
        let valid = self.syns.is_taken(slot) && self.syns.generation(slot) == generation;
        if !valid || !self.syns[slot].asked {
            return false;
        }
        match answer {
            Answer::Accept => {
                self.syns[slot].asked = false;
                self.asks.retain(|&asked| asked != slot);
                self.send_syn_ack(now, slot);
            }
            Answer::Refuse => {
                let syn = &self.syns[slot];
                let flags = Flags::RST.with(Flags::ACK);
                let head = Head { ack: syn.irs + 1, flags, ..Head::default() };
                let tuple = syn.tuple;
                self.forget_syn(slot);
                self.reply(tuple, head);
            }
            Answer::Ignore => self.forget_syn(slot),
        }
        true
    }

    pub(crate) fn listener_slot(&self, listener: Listener) -> Option<u32> {
        let Listener { slot, generation } = listener;
        (self.listeners.is_taken(slot) && self.listeners.generation(slot) == generation).then_some(slot)
    }

    pub(crate) fn next_incoming(&mut self) -> Option<Event> {
        while let Some(slot) = self.incoming.pop() {
            if self.listeners.is_taken(slot) && !self.listeners[slot].accepted.is_empty() {
                let generation = self.listeners.generation(slot);
                return Some(Event::Incoming(Listener { slot, generation }));
            }
        }
        None
    }
}

/// The timestamp clock: milliseconds (RFC 7323, 5.4).
pub(crate) fn timestamp(now: Time, offset: u32) -> u32 {
    ((now.micros() / 1000) as u32).wrapping_add(offset)
}
