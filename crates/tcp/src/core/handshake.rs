//! Segments that belong to a handshake: answers to our SYN, and the last ACK of a peer's.

use super::flow::{Hot, Lasting, NO_COLD, ecn, flag};
use super::index::Kind;
use super::listen::{Listening, Syn, peer_mss, timestamp};
use super::seq::Seq;
use super::state::{State, Step};
use super::tuple::Tuple;
use super::wire::{Flags, Head, Timestamps};
use super::{Keep, Segment, Stack, Verdict};
use crate::control::Control;
use crate::event::{Failure, Ready, Reason};
use crate::time::{Deadline, Time};

impl<C: Control> Stack<C> {
    /// A flow that has sent or received a SYN. `None` if there are too many.
    pub(crate) fn new_flow(&mut self, tuple: Tuple, state: State, iss: Seq, mss: u16) -> Option<u32> {
        let hot = Hot {
            tuple,
            state,
            failure: None,
            flags: 0,
            rcv_nxt: Seq(0),
            rcv_edge: Seq(0),
            snd_una: iss,
            snd_nxt: iss + 1,
            snd_wnd: 0,
            ts_recent: 0,
            owner: 0,
            cold: NO_COLD,
            snd_end: iss + 1,
            snd_wl1: Seq(0),
            rcv_acked: Seq(0),
            rcv_read: Seq(0),
            window: self.control.start(u32::from(mss), false),
            srtt: 0,
            rttvar: 0,
            ts_offset: self.secret.timestamp_offset(&tuple),
            send_at: Deadline::NONE,
            ack_at: Deadline::NONE,
            life_at: Deadline::NONE,
            mss,
            scales: 0,
            backoff: 0,
            ready: Ready::default(),
            quick_and_largest: self.profile.quick_acks.min(7),
            probes: 0,
            grown_and_ecn: 0,
        };
        let slot = self.flows.insert(hot)?;
        self.choices.forget(slot);
        match self.lasting.get_mut(slot as usize) {
            Some(lasting) => *lasting = Lasting::default(),
            None => self.lasting.push(Lasting::default()),
        }
        self.index.insert(self.secret.hash(&tuple), Kind::Flow, slot);
        Some(slot)
    }

    /// An answer to our SYN, in the order of RFC 9293, 3.10.7.3.
    pub(crate) fn on_syn_sent(&mut self, now: Time, slot: u32, head: &Head) -> Verdict {
        let hot = self.flows[slot];
        // First: the ACK bit.
        let has_ack = head.flags.has(Flags::ACK);
        let acknowledges = head.ack.after(hot.snd_una) && head.ack.upto(hot.snd_nxt);
        if has_ack && !acknowledges {
            if !head.flags.has(Flags::RST) {
                self.reply(hot.tuple, Head { seq: head.ack, flags: Flags::RST, ..Head::default() });
            }
            return self.refuse(Reason::Handshake);
        }
        // Second: the RST bit. RFC 5961, 3.2: only with an acceptable ACK.
        if head.flags.has(Flags::RST) {
            if has_ack {
                self.end(slot, Some(Failure::Refused));
            }
            return self.refuse(Reason::Handshake);
        }
        // Fourth: the SYN bit.
        if !head.flags.has(Flags::SYN) {
            return self.refuse(Reason::Handshake);
        }
        let own_mss = self.own_mss(slot);
        let scale = self.window_scale();
        let window = self.first_window();
        let offers = self.offers;
        let hot = &mut self.flows[slot];
        hot.rcv_nxt = head.seq + 1;
        hot.rcv_edge = hot.rcv_nxt + window;
        hot.rcv_read = hot.rcv_nxt;
        hot.rcv_acked = head.seq;
        hot.snd_wl1 = head.seq;
        // RFC 7323, 2.2: the window of a SYN is never scaled.
        hot.offered(u32::from(head.window));
        hot.mss = peer_mss(head, &hot.tuple).min(own_mss);
        if let Some(theirs) = head.scale.filter(|_| offers.scale) {
            hot.scales = theirs | scale << 4;
        }
        if let Some(stamps) = head.timestamps.filter(|_| offers.timestamps) {
            hot.set(flag::TIMESTAMPS);
            hot.ts_recent = stamps.value;
        }
        if head.sack_permitted && offers.sack {
            hot.set(flag::SACK);
        }
        // RFC 3168, 6.1.1: some answer with the bits that they got.
        let grants = head.flags.has(Flags::ECE) && !head.flags.has(Flags::CWR);
        let agreed = if has_ack { grants && hot.backoff < offers.ecn } else { Self::asks_for_ecn(head) };
        if agreed {
            hot.set_ecn(ecn::ON);
        }
        if has_ack {
            hot.snd_una = head.ack;
            // The timer was set when the SYN was sent, and has not expired since.
            let sent = hot.send_at.tick(now).map(Time::of_tick);
            if let Some(at) = sent
                && !hot.has(flag::SYN_REPEATED)
            {
                let left = at.since(now);
                let rtt = self.profile.rto_initial.saturating_sub(left);
                self.measured(slot, rtt.as_micros() as u32);
            }
            self.established(now, slot);
            self.flows[slot].set(flag::ACK_NOW);
        } else {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.5
            //# A TCP implementation MUST support simultaneous open attempts (MUST- 10).
            // Simultaneous open (RFC 9293, 3.5, MUST-10).
            hot.state = hot.state.after(Step::SynReceived);
            hot.backoff = 0;
            hot.set(flag::SYN_NOW);
        }
        Verdict::Nothing
    }

    /// Our SYN is acknowledged.
    pub(crate) fn established(&mut self, now: Time, slot: u32) {
        let conservative = self.flows[slot].has(flag::SYN_REPEATED);
        let mss = u32::from(self.flows[slot].mss);
        let window = self.control.start(mss, conservative);
        let patience = self.patience(slot);
        let hot = &mut self.flows[slot];
        // A program may already have closed it.
        let closed = hot.has(flag::FIN);
        hot.state = hot.state.after(Step::SynAcknowledged);
        if closed {
            hot.state = hot.state.after(Step::Close);
        }
        hot.window = window;
        self.lasting[slot as usize].mss = hot.mss;
        hot.send_at = Deadline::NONE;
        hot.backoff = 0;
        // The attempt is over; a program that has closed it waits for the peer from now on.
        if !hot.has(flag::LINGER) {
            let orphan = hot.has(flag::ORPHAN);
            hot.life_at = if orphan { Deadline::at(now.after(patience)) } else { Deadline::NONE };
        }
        self.touch_keep_alive(now, slot);
        self.happen(slot, Ready::CONNECTED);
        self.happen(slot, Ready::WRITABLE);
        self.deliver_early(slot);
    }

    /// A segment for a half-open connection (RFC 9293, 3.10.7.4, SYN-RECEIVED).
    pub(crate) fn on_half_open(
        &mut self,
        now: Time,
        slot: u32,
        segment: &Segment<'_>,
        head: &Head,
        keep: &mut impl Keep,
    ) -> Verdict {
        let Syn { tuple, irs, iss, ts_recent, ts_offset, scale, flags, asked, .. } = self.syns[slot];
        let ours = if scale.is_some() { self.window_scale() } else { 0 };
        let with_timestamps = flags & flag::TIMESTAMPS != 0;
        let challenge = Head {
            seq: iss + 1,
            ack: irs + 1,
            flags: Flags::ACK,
            window: self.first_window().div_ceil(1 << ours) as u16,
            timestamps: with_timestamps
                .then(|| Timestamps { value: timestamp(now, ts_offset), echo: ts_recent }),
            ..Head::default()
        };
        if head.flags.has(Flags::RST) {
            // RFC 5961, 3.2: reset at exactly the next sequence number, challenged inside the window.
            let offset = head.seq - (irs + 1);
            if offset == 0 {
                self.forget_syn(slot);
            } else if offset < self.first_window() && !asked {
                self.challenge_early(now, slot, challenge);
            }
            return self.refuse(Reason::Handshake);
        }
        if head.flags.has(Flags::SYN) {
            match head.seq == irs {
                // Nothing was sent that a challenge could refer to.
                _ if asked => {}
                true => self.repeat_syn_ack(now, slot),
                // RFC 5961, 4.2.
                false => self.challenge_early(now, slot, challenge),
            }
            return self.refuse(Reason::Handshake);
        }
        if !head.flags.has(Flags::ACK) || asked {
            return self.refuse(Reason::NoAck);
        }
        if head.ack != iss + 1 {
            self.reply(tuple, Head { seq: head.ack, flags: Flags::RST, ..Head::default() });
            return self.refuse(Reason::Handshake);
        }
        let old_stamp = head.timestamps.is_some_and(|stamps| is_older(stamps, ts_recent));
        let offset = head.seq - (irs + 1);
        if offset >= self.first_window() || with_timestamps && old_stamp {
            self.challenge_early(now, slot, challenge);
            return self.refuse(Reason::Window);
        }
        let syn = self.syns[slot];
        let Some(flow) = self.complete(now, &syn, keep) else { return self.refuse(Reason::Backlog) };
        self.forget_syn(slot);
        self.on_flow(now, flow, segment, head, keep)
    }

    /// The last ACK of a handshake has arrived. `None` where the accept queue is full, or there is no
    /// room for a flow: the ACK is dropped and the SYN-ACK repeated, so that the connection is there once
    /// there is room.
    pub(crate) fn complete(&mut self, now: Time, syn: &Syn, keep: &mut impl Keep) -> Option<u32> {
        let &Syn { listener, iss, sent_at, retries, ambiguous, .. } = syn;
        if self.listeners[listener].accepted.len() >= self.listeners[listener].backlog {
            return None;
        }
        if self.flows.is_full() {
            // Bytes of a connection that drains are worth more than one that is not there yet.
            self.evict_orphan(false);
            return None;
        }
        let flow = self.promote(now, syn)?;
        if retries == 0 && !ambiguous {
            self.measured(flow, now.since(sent_at).as_micros() as u32);
        }
        let Listening { marking, max_segment, .. } = self.listeners[listener];
        self.choices.change(flow, |chosen| &mut chosen.marking, marking);
        self.choices.change(flow, |chosen| &mut chosen.max_segment, max_segment);
        self.established(now, flow);
        self.flows[flow].set(flag::UNACCEPTED);
        self.flows[flow].ready = Ready::default();
        self.listeners[listener].accepted.push_back(flow);
        self.incoming.push(listener);
        keep.acknowledged(flow, iss + 1);
        Some(flow)
    }

    /// Answers what may be forged, with the limit that a flow has.
    fn challenge_early(&mut self, now: Time, slot: u32, challenge: Head) {
        let most = self.challenges_now();
        let syn = &mut self.syns[slot];
        if syn.challenges.may_answer(now, most) {
            let (tuple, listener) = (syn.tuple, syn.listener);
            self.reply_marked(tuple, challenge, self.listeners[listener].marking);
        }
    }

    /// Makes a flow of a half-open connection.
    fn promote(&mut self, now: Time, syn: &Syn) -> Option<u32> {
        let &Syn { tuple, irs, iss, ts_recent, ts_offset, mss, scale, flags, retries, .. } = syn;
        let flow = self.new_flow(tuple, State::SynReceived, iss, mss)?;
        let ours = self.window_scale();
        let window = self.first_window();
        let hot = &mut self.flows[flow];
        hot.flags = flags;
        if syn.ecn {
            hot.set_ecn(ecn::ON);
        }
        if retries > 0 {
            hot.set(flag::SYN_REPEATED);
        }
        hot.snd_una = iss + 1;
        hot.rcv_nxt = irs + 1;
        hot.rcv_read = hot.rcv_nxt;
        hot.rcv_acked = hot.rcv_nxt;
        hot.rcv_edge = hot.rcv_nxt + window;
        hot.snd_wl1 = irs;
        hot.ts_recent = ts_recent;
        hot.ts_offset = ts_offset;
        if let Some(theirs) = scale {
            hot.scales = theirs | ours << 4;
        }
        debug_assert_eq!(timestamp(now, ts_offset), timestamp(now, hot.ts_offset));
        Some(flow)
    }
}

/// PAWS (RFC 7323, 5.2): whether a segment is older than the newest that was received.
pub(crate) fn is_older(stamps: Timestamps, recent: u32) -> bool {
    (stamps.value.wrapping_sub(recent) as i32) < 0
}
