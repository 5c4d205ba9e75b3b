//! What a program asks of its flows.

use super::Stack;
use super::chosen::ANY_SEGMENT;
use super::flow::{Hot, ecn, flag};
use super::listen::{Listening, Pattern};
use super::seq::Seq;
use super::state::{State, Step};
use super::tuple::Tuple;
use crate::config::{KeepAlive, Marking};
use crate::control::Control;
use crate::event::{Event, Failure, Flow, Listener, Ready};
use crate::time::{Deadline, Time};

/// Why a listener was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// There is one for the same address and port.
    #[error("there is a listener for this address and port")]
    InUse,
    /// There are as many as [`Limits::listeners`](crate::Limits::listeners) allows.
    #[error("too many listeners")]
    TooMany,
}

/// Why a connection was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// There is a connection between these addresses and ports, or all ports are taken.
    #[error("no free port")]
    InUse,
    /// There are as many connections as [`Limits::flows`](crate::Limits::flows) allows.
    #[error("too many connections")]
    TooMany,
    /// The host has no address of that family, or not this one.
    #[error("not an address of this host")]
    Address,
    /// The remote address is not that of one host, or the port is 0 (RFC 9293, MUST-46).
    #[error("not an address that can be connected to")]
    Remote,
}

/// Connections that are looked at for one that the program has closed.
const ORPHAN_TRIES: u32 = 64;
/// The dynamic ports (RFC 6335, 6; RFC 6056, 3.2).
const PORT_FIRST: u64 = 49_152;
const PORTS: u64 = 16_384;

impl<C: Control> Stack<C> {
    pub(crate) fn listen(
        &mut self,
        pattern: Pattern,
        ask: bool,
        backlog: usize,
    ) -> Result<Listener, ListenError> {
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# Every passive OPEN call either creates a new connection record in LISTEN state, or it returns an
        //# error; it MUST NOT affect any previously created connection record (MUST-41).
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# A TCP implementation that supports multiple concurrent connections MUST provide an OPEN call that
        //# will functionally allow an application to LISTEN on a port while a connection block with the same
        //# local port is in SYN-SENT or SYN-RECEIVED state (MUST-42).
        if self.listeners.slots().any(|slot| self.listeners[slot].pattern == pattern) {
            return Err(ListenError::InUse);
        }
        let backlog = backlog.clamp(1, self.limits.flows);
        let accepted = std::collections::VecDeque::with_capacity(backlog);
        let (marking, max_segment) = (Marking::HOST, ANY_SEGMENT);
        let listening = Listening { pattern, ask, backlog, accepted, marking, max_segment };
        let slot = self.listeners.insert(listening).ok_or(ListenError::TooMany)?;
        Ok(Listener { slot, generation: self.listeners.generation(slot) })
    }

    /// The next connection of a listener.
    pub(crate) fn accept(&mut self, listener: u32) -> Option<u32> {
        let slot = self.listeners[listener].accepted.pop_front()?;
        if !self.listeners[listener].accepted.is_empty() {
            self.incoming.push(listener);
        }
        let hot = &mut self.flows[slot];
        hot.clear(flag::UNACCEPTED);
        // What came before the program had the flow is still news to it.
        let mut ready = Ready::default();
        if hot.readable_end() != hot.rcv_read {
            ready.add(Ready::READABLE);
        }
        if hot.has(flag::FIN_RECEIVED) {
            ready.add(Ready::END);
        }
        if hot.failure.is_some() {
            ready.add(Ready::FAILED);
        }
        hot.ready = ready;
        if !ready.is_empty() {
            self.happened.push(slot);
        }
        Some(slot)
    }

    pub(crate) fn waiting(&self, listener: u32) -> usize {
        self.listeners[listener].accepted.len()
    }

    /// Ends a listener. Connections that nobody accepted are reset.
    pub(crate) fn unlisten(&mut self, now: Time, listener: u32) {
        while let Some(slot) = self.listeners[listener].accepted.pop_front() {
            self.flows[slot].clear(flag::UNACCEPTED);
            self.close(now, slot, Closing::Reset);
        }
        let half_open: Vec<u32> =
            self.syns.slots().filter(|&slot| self.syns[slot].listener == listener).collect();
        for slot in half_open {
            self.forget_syn(slot);
        }
        self.listeners.remove(listener);
    }

    /// Begins a connection. With a local port of 0 it takes an unpredictable one (RFC 6056, 3.3.1).
    pub(crate) fn connect(
        &mut self,
        now: Time,
        mut local: std::net::SocketAddr,
        remote: std::net::SocketAddr,
    ) -> Result<u32, ConnectError> {
        if self.flows.is_full() {
            return Err(ConnectError::TooMany);
        }
        let tuple = if local.port() == 0 {
            let start = self.secret.random();
            // 257 and their number have no divisor in common: each of them is tried once.
            let candidates = (0..PORTS).map(|step| {
                local.set_port((PORT_FIRST + (start + step * 257) % PORTS) as u16);
                Tuple::new(local, remote)
            });
            let free = candidates.into_iter().find(|tuple| !self.is_known(tuple));
            free.ok_or(ConnectError::InUse)?
        } else {
            Some(Tuple::new(local, remote))
                .filter(|tuple| !self.is_known(tuple))
                .ok_or(ConnectError::InUse)?
        };
        let iss = self.secret.initial_sequence(now, &tuple);
        let mss = self.path_mss(&tuple);
        let slot = self.new_flow(tuple, State::SynSent, iss, mss).ok_or(ConnectError::TooMany)?;
        self.flows[slot].set(flag::SYN_NOW);
        self.flows[slot].life_at = Deadline::at(now.after(self.profile.attempt));
        self.settle(now, slot);
        Ok(slot)
    }

    /// Bounds a connection attempt.
    pub(crate) fn connect_within(&mut self, now: Time, slot: u32, time: std::time::Duration) {
        let hot = &mut self.flows[slot];
        if matches!(hot.state, State::SynSent | State::SynReceived) {
            hot.life_at = Deadline::at(now.after(time));
            self.settle(now, slot);
        }
    }

    fn is_known(&self, tuple: &Tuple) -> bool {
        self.find(self.secret.hash(tuple), tuple).is_some()
    }

    /// The program has queued bytes.
    pub(crate) fn send(&mut self, now: Time, slot: u32, bytes: u32) {
        let hot = &mut self.flows[slot];
        if hot.snd_una == hot.snd_limit() {
            // The timer was that of idle time; the program may be earlier.
            if std::mem::replace(&mut hot.send_at, Deadline::NONE).is_due(now) {
                self.restart_after_idle(slot);
            }
        }
        let hot = &mut self.flows[slot];
        hot.snd_end = hot.snd_end + bytes;
        self.settle(now, slot);
    }

    /// The program has no more to send: a FIN follows what is queued.
    pub(crate) fn shutdown(&mut self, now: Time, slot: u32) {
        let hot = &mut self.flows[slot];
        if hot.state == State::Closed || hot.has(flag::FIN) {
            return;
        }
        hot.set(flag::FIN);
        hot.state = hot.state.after(Step::Close);
        self.settle(now, slot);
    }

    /// The program gives its handle back.
    pub(crate) fn close(&mut self, now: Time, slot: u32, how: Closing) {
        let patience = self.patience(slot);
        let hot = &mut self.flows[slot];
        hot.set(flag::ORPHAN);
        hot.ready = Ready::default();
        let unread = hot.readable_end() != hot.rcv_read;
        match hot.state {
            State::Closed => return self.over.push(slot),
            State::SynSent => return self.end(slot, None),
            _ => {}
        }
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.6.1
        //# If such a host issues a CLOSE call while received data is still pending in the TCP connection, or
        //# if new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to show
        //# that data was lost (SHLD-3).
        // RFC 9293, 3.6.1, SHLD-3: unread bytes are lost, and the peer must know.
        let Closing::Linger(linger) = how else { return self.abort(now, slot) };
        if unread && hot.state != State::TimeWait {
            return self.abort(now, slot);
        }
        if !hot.has(flag::FIN) {
            hot.set(flag::FIN);
            hot.state = hot.state.after(Step::Close);
        }
        let wait = match hot.state {
            // The attempt goes on.
            State::SynReceived if linger.is_none() => return self.settle(now, slot),
            State::FinWait2 => self.profile.fin_wait,
            State::TimeWait => self.profile.time_wait,
            _ => linger.unwrap_or(patience),
        };
        if linger.is_some() {
            hot.set(flag::LINGER);
        }
        hot.life_at = Deadline::at(now.after(wait));
        self.settle(now, slot);
    }

    /// Resets a flow whose handle is closed.
    pub(crate) fn abort(&mut self, now: Time, slot: u32) {
        let _ = now;
        self.reset(slot, None);
    }

    /// Resets the peer, and ends the flow for this reason.
    pub(crate) fn reset(&mut self, slot: u32, failure: Option<Failure>) {
        let hot = &self.flows[slot];
        if hot.state.is_synchronized() && hot.state != State::TimeWait || hot.state == State::SynReceived {
            self.send_reset(slot);
        }
        self.end(slot, failure);
    }

    /// Sets or clears a flag that is the program's to choose.
    pub(crate) fn choose(&mut self, now: Time, slot: u32, flag: u16, on: bool) {
        let hot = &mut self.flows[slot];
        if on {
            hot.set(flag)
        } else {
            hot.clear(flag)
        }
        if flag == flag::KEEP_ALIVE {
            hot.probes = 0;
            let open = hot.state.is_synchronized() && hot.state != State::TimeWait;
            if !on && !hot.has(flag::ORPHAN) && open {
                hot.life_at = Deadline::NONE;
            }
            self.touch_keep_alive(now, slot);
        }
        self.settle(now, slot);
    }

    /// Whether less than a full segment waits for more.
    pub(crate) fn cork(&mut self, now: Time, slot: u32, on: bool) {
        self.choices.change(slot, |chosen| &mut chosen.cork, on);
        self.settle(now, slot);
    }

    /// The largest segment that is offered with a SYN and sent. An open connection has agreed on one.
    pub(crate) fn limit_segment(&mut self, slot: u32, most: u16) {
        if !self.flows[slot].state.is_synchronized() {
            self.choices.change(slot, |chosen| &mut chosen.max_segment, most);
        }
    }

    /// Sets the times of probes, and begins to wait anew.
    pub(crate) fn probe_after(&mut self, now: Time, slot: u32, times: Option<KeepAlive>) {
        self.choose_keep_alive(slot, times);
        self.touch_keep_alive(now, slot);
        self.settle(now, slot);
    }

    /// The next event.
    #[inline]
    pub(crate) fn event(&mut self) -> Option<Event> {
        if let Some(event) = self.next_ask().or_else(|| self.next_incoming()) {
            return Some(event);
        }
        while let Some(slot) = self.happened.pop() {
            if !self.flows.is_taken(slot) {
                continue;
            }
            let hot = &mut self.flows[slot];
            if hot.has(flag::UNACCEPTED) || hot.has(flag::ORPHAN) {
                continue;
            }
            let ready = std::mem::take(&mut hot.ready);
            if !ready.is_empty() {
                let owner = hot.owner;
                return Some(Event::Flow { flow: self.handle(slot), owner, ready });
            }
        }
        None
    }

    /// Resets a connection that the program has closed, if there is one among the next few whose peer
    /// does not answer or does not close; `draining` ones are hit where there is no other. The hand goes
    /// round.
    pub(crate) fn evict_orphan(&mut self, draining: bool) {
        let bound = self.flows.bound() as u32;
        let mut healthy = None;
        for _ in 0..bound.min(ORPHAN_TRIES) {
            let slot = self.orphan_hand % bound;
            self.orphan_hand = slot + 1;
            let is_orphan = |hot: &Hot| hot.has(flag::ORPHAN) && hot.state != State::Closed;
            if !self.flows.is_taken(slot) || !is_orphan(&self.flows[slot]) {
                continue;
            }
            let hot = &self.flows[slot];
            if hot.backoff > 0 || hot.state == State::FinWait2 {
                return self.reset(slot, None);
            }
            healthy = healthy.or(Some(slot));
        }
        if let Some(slot) = healthy.filter(|_| draining) {
            self.reset(slot, None);
        }
    }

    /// Whether there is a flow that is over and has no handle.
    pub(crate) fn has_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// The next flow that is over and has no handle, freed: its bytes can go.
    pub(crate) fn reap(&mut self) -> Option<u32> {
        let slot = self.over.pop()?;
        self.flows.remove(slot);
        Some(slot)
    }

    pub(crate) fn info(&self, slot: u32) -> Info {
        let hot: &Hot = &self.flows[slot];
        let lasting = &self.lasting[slot as usize];
        let owes_data = hot.snd_limit() != hot.snd_una;
        Info {
            state: hot.state,
            unacknowledged: hot.outstanding(),
            unsent: hot.snd_limit().past(hot.snd_nxt),
            unread: hot.readable_end() - hot.rcv_read,
            sent_to: hot.snd_nxt,
            peer_edge: hot.snd_edge(),
            received_to: hot.rcv_nxt,
            offered_edge: hot.rcv_edge,
            congestion_window: hot.window.congestion,
            slow_start_threshold: hot.window.threshold,
            round_trip_micros: hot.srtt,
            round_trip_variation_micros: hot.rttvar,
            least_round_trip_micros: lasting.rack.min_rtt,
            timeout_micros: self.rto(slot),
            segments_again: lasting.segments_again,
            bytes_again: lasting.again,
            reordering: lasting.rack.reordering_seen,
            delivery_rate: lasting.rate,
            receive_buffer: self.receive_space(slot),
            mss: hot.mss,
            trouble: self.choices.of(slot).trouble,
            timestamps: hot.has(flag::TIMESTAMPS),
            sack: hot.has(flag::SACK),
            scale: hot.scales != 0,
            ecn: hot.has_ecn(ecn::ON),
            owes: hot.state != State::Closed && (owes_data || hot.owes_ack()),
            is_scheduled: self.ready.contains(slot)
                || self.waiting.contains(slot)
                || self.wheel.scheduled(slot).is_some(),
        }
    }

    /// Flows that are not over, whether or not a program has a handle.
    pub(crate) fn live_flows(&self) -> impl Iterator<Item = Flow> {
        let live = self.flows.slots().filter(|&slot| self.flows[slot].state != State::Closed);
        live.map(|slot| self.handle(slot))
    }

    /// Whether there is something to emit now.
    pub(crate) fn has_output(&self) -> bool {
        !self.replies.is_empty() || !self.ready.is_empty() || self.serves_waiting()
    }
}

/// How a handle is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Send what is queued, then a FIN, within this time; else an RST.
    Linger(Option<std::time::Duration>),
    /// An RST at once.
    Reset,
}

/// State of a connection, for programs that watch it and for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// State of RFC 9293.
    pub state: State,
    /// Bytes, and a FIN, that were sent and are not acknowledged.
    pub unacknowledged: u32,
    /// Bytes, and a FIN, that are queued and were not sent.
    pub unsent: u32,
    /// Bytes that the program can read.
    pub unread: u32,
    /// SND.NXT.
    pub sent_to: Seq,
    /// The right edge of the peer's window.
    pub peer_edge: Seq,
    /// RCV.NXT.
    pub received_to: Seq,
    /// The right edge of the window that was offered to the peer.
    pub offered_edge: Seq,
    /// Congestion window in bytes.
    pub congestion_window: u32,
    /// Slow start ends there, in bytes; `u32::MAX` before the first loss.
    pub slow_start_threshold: u32,
    /// Smoothed round-trip time; 0 before the first measurement.
    pub round_trip_micros: u32,
    /// Its mean deviation (RTTVAR of RFC 6298).
    pub round_trip_variation_micros: u32,
    /// The least round trip of a segment that was sent once; 0 before the first.
    pub least_round_trip_micros: u32,
    /// The retransmission timeout, backed off where it has expired.
    pub timeout_micros: u64,
    /// Segments that were sent more than once, up to 2^32 - 1.
    pub segments_again: u32,
    /// Bytes that were sent more than once.
    pub bytes_again: u64,
    /// Segments were seen to overtake others (RFC 8985, 6.2, step 3).
    pub reordering: bool,
    /// Bytes a second that were acknowledged in the last round trip, up to 2^32 - 1; 0 before the first.
    pub delivery_rate: u32,
    /// Bytes that may be unread now.
    pub receive_buffer: u32,
    /// Payload of a segment without options.
    pub mss: u16,
    /// What may end the connection, if something was [reported](Ready::TROUBLE): the network does not
    /// reach the peer, or the peer acknowledges nothing. Nothing says that it is over.
    pub trouble: Option<Failure>,
    /// Both use timestamps.
    pub timestamps: bool,
    /// Both use selective acknowledgements.
    pub sack: bool,
    /// Both use window scaling.
    pub scale: bool,
    /// Both use explicit congestion notification.
    pub ecn: bool,
    /// Data or an acknowledgement is owed to the peer.
    pub owes: bool,
    /// The flow sends next or when there is memory for it, or has a deadline.
    pub is_scheduled: bool,
}
