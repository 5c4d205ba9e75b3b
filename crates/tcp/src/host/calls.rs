//! What a program does with its connections.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{Host, is_for_the_wire};
use crate::config::{KeepAlive, Marking};
use crate::control::Control;
use crate::core::address::Address;
use crate::core::calls::{Closing, ConnectError, Info, ListenError};
use crate::core::chosen::{ANY_SEGMENT, MAX_SEGMENT_LEAST};
use crate::core::flow::{NO_COLD, flag};
use crate::core::listen::Pattern;
use crate::core::seq::{Seq, Span};
use crate::core::state::State;
use crate::event::{Answer, Ask, Failure, Flow, Listener};
use crate::time::Time;

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing yet; an event follows.
    Empty,
    /// The end of the stream.
    End,
}

/// Why a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The handle's connection was closed.
    #[error("the connection was closed by this program")]
    Closed,
    /// The connection has failed, and everything that came before has been read.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// This program has ended the stream, or closed the connection.
    #[error("this program has ended the stream")]
    Ended,
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl<C: Control> Host<C> {
    /// Listens. At most `backlog` connections wait to be accepted.
    pub fn listen(&mut self, pattern: Pattern, backlog: usize) -> Result<Listener, ListenError> {
        self.stack.listen(pattern, false, backlog)
    }

    /// Listens, and asks the program about each SYN before it is answered
    /// ([`Event::Ask`](crate::Event::Ask)): a forwarder decides when it knows whether the other
    /// side can be reached.
    pub fn listen_asking(&mut self, pattern: Pattern, backlog: usize) -> Result<Listener, ListenError> {
        self.stack.listen(pattern, true, backlog)
    }

    /// Answers such a question. False if the SYN is gone meanwhile.
    pub fn answer(&mut self, now: Time, ask: Ask, answer: Answer) -> bool {
        self.stack.answer(now, ask, answer)
    }

    /// The next connection of a listener.
    pub fn accept(&mut self, listener: Listener) -> Option<Flow> {
        let listener = self.stack.listener_slot(listener)?;
        let slot = self.stack.accept(listener)?;
        Some(self.stack.handle(slot))
    }

    /// Connections of a listener that wait to be accepted.
    pub fn waiting(&self, listener: Listener) -> usize {
        self.stack.listener_slot(listener).map_or(0, |slot| self.stack.waiting(slot))
    }

    /// Ends a listener; connections that wait to be accepted are reset.
    pub fn unlisten(&mut self, now: Time, listener: Listener) {
        if let Some(slot) = self.stack.listener_slot(listener) {
            self.stack.unlisten(now, slot);
            self.tidy();
        }
    }

    /// Begins a connection, from this address or from the host's first of that family. A port of
    /// `None` takes a free one.
    pub fn connect(
        &mut self,
        now: Time,
        address: Option<IpAddr>,
        port: Option<u16>,
        remote: SocketAddr,
    ) -> Result<Flow, ConnectError> {
        let family = |address: IpAddr| address.is_ipv4() == remote.is_ipv4();
        let address = match address {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
            //# The optional "local IP address" parameter MUST be supported to allow the specification of the
            //# local IP address (MUST-43).
            Some(address) => Some(address).filter(|&address| self.owns(address) && family(address)),
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
            //# If an application on a multihomed host does not specify the local IP address when actively
            //# opening a TCP connection, then the TCP implementation MUST ask the IP layer to select a local
            //# IP address before sending the (first) SYN (MUST-44).
            None => self.addresses.iter().map(|prefix| prefix.address).find(|&address| family(address)),
        };
        let address = address.ok_or(ConnectError::Address)?;
        //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.1
        //# A TCP implementation MUST reject as an error a local OPEN call for an invalid remote IP address
        //# (e.g., a broadcast or multicast address) (MUST-46).
        let unicast = is_for_the_wire(remote.ip()) && Address::from(remote.ip()).is_unicast();
        // Nothing comes back from the device that is for its own address.
        if !unicast || remote.port() == 0 || remote.ip() == address {
            return Err(ConnectError::Remote);
        }
        let local = SocketAddr::new(address, port.unwrap_or(0));
        if self.stack.flows.is_full() {
            self.stack.evict_orphan(true);
            self.tidy();
        }
        let slot = self.stack.connect(now, local, remote)?;
        Ok(self.stack.handle(slot))
    }

    /// Queues bytes to be sent, as many as there is room for: possibly none, and then an event
    /// follows when there is. The bytes are copied.
    pub fn write(&mut self, now: Time, flow: Flow, bytes: &[u8]) -> Result<usize, WriteError> {
        let slot = self.stack.slot(flow).ok_or(WriteError::Ended)?;
        let hot = &self.stack.flows[slot];
        if let Some(failure) = hot.failure {
            return Err(failure.into());
        }
        if !hot.state.can_send() || hot.has(flag::FIN) {
            return Err(WriteError::Ended);
        }
        let (end, queued) = (hot.snd_end, hot.snd_end.past(hot.snd_una));
        let space = self.stack.send_space(slot, self.store.sent.room());
        let room = space.saturating_sub(queued) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        let stream = &mut self.store.streams[slot as usize].sent;
        let written = self.store.sent.write(stream, end, bytes);
        if written < bytes.len() {
            self.starved.push(slot);
        }
        if written > 0 {
            self.stack.send(now, slot, written as u32);
        }
        Ok(written)
    }

    /// Reads bytes that have arrived.
    pub fn read(&mut self, now: Time, flow: Flow, out: &mut [u8]) -> Result<Read, ReadError> {
        let slot = self.stack.slot(flow).ok_or(ReadError::Closed)?;
        let hot = &self.stack.flows[slot];
        let at = hot.rcv_read;
        let len = (hot.readable_end() - at).min(out.len() as u32);
        if len == 0 {
            return match hot.failure {
                Some(failure) if hot.readable_end() == at => Err(failure.into()),
                _ if hot.has(flag::FIN_RECEIVED) && hot.readable_end() == at => Ok(Read::End),
                _ if hot.state == State::Closed => Ok(Read::End),
                _ => Ok(Read::Empty),
            };
        }
        let stream = &mut self.store.streams[slot as usize].received;
        self.store.received.read(stream, at, &mut out[..len as usize]);
        self.store.received.release(stream, at + len);
        let room = self.store.received.room();
        self.stack.consumed(now, slot, at + len, room);
        Ok(Read::Bytes(len as usize))
    }

    /// Copies bytes that have arrived, and leaves them to be read. Nothing: no byte is there, or there
    /// will be none.
    pub fn peek(&mut self, flow: Flow, out: &mut [u8]) -> usize {
        let Some(slot) = self.stack.slot(flow) else { return 0 };
        let hot = &self.stack.flows[slot];
        let at = hot.rcv_read;
        let len = (hot.readable_end() - at).min(out.len() as u32);
        if len > 0 {
            let stream = &mut self.store.streams[slot as usize].received;
            self.store.received.read(stream, at, &mut out[..len as usize]);
        }
        len as usize
    }

    /// Ends the stream to the peer, behind what was written. The peer may go on sending.
    pub fn shutdown(&mut self, now: Time, flow: Flow) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.shutdown(now, slot);
        }
    }

    /// Closes a connection: what was written is still sent, then the end of the stream. Bytes that
    /// were not read, or arrive later, reset the connection.
    pub fn close(&mut self, now: Time, flow: Flow) {
        self.close_how(now, flow, Closing::Linger(None));
    }

    /// Closes a connection, and resets it if the peer has not acknowledged everything in time.
    pub fn close_within(&mut self, now: Time, flow: Flow, linger: Duration) {
        self.close_how(now, flow, Closing::Linger(Some(linger)));
    }

    /// Resets a connection.
    pub fn abort(&mut self, now: Time, flow: Flow) {
        self.close_how(now, flow, Closing::Reset);
    }

    /// Ends a connection as if its peer had not answered for too long: for a program that has waits
    /// of its own. The peer is reset, and reads fail with [`Failure::TimedOut`].
    pub fn time_out(&mut self, flow: Flow) {
        if let Some(slot) = self.stack.slot(flow)
            && !self.stack.flows[slot].has(flag::ORPHAN)
            && self.stack.flows[slot].state != State::Closed
        {
            self.stack.reset(slot, Some(Failure::TimedOut));
            self.tidy();
        }
    }

    fn close_how(&mut self, now: Time, flow: Flow, how: Closing) {
        if let Some(slot) = self.stack.slot(flow)
            && !self.stack.flows[slot].has(flag::ORPHAN)
        {
            self.stack.close(now, slot, how);
            self.tidy();
        }
    }

    /// Whether small segments go out at once (TCP_NODELAY).
    pub fn set_no_delay(&mut self, now: Time, flow: Flow, on: bool) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.choose(now, slot, flag::NO_DELAY, on);
        }
    }

    /// Whether less than a full segment waits for more bytes (TCP_CORK): until they come, the cork or the
    /// connection's sending side is taken away, or a retransmission timeout has passed.
    pub fn set_cork(&mut self, now: Time, flow: Flow, on: bool) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.cork(now, slot, on);
        }
    }

    /// The largest segment that a connection offers to its peer and sends (TCP_MAXSEG), at least 88 bytes; what
    /// the path takes if `None`. Without effect on one that is open.
    pub fn set_max_segment(&mut self, flow: Flow, most: Option<u16>) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.limit_segment(slot, max_segment(most));
        }
    }

    /// The same for connections that a listener will get.
    pub fn set_listener_max_segment(&mut self, listener: Listener, most: Option<u16>) {
        if let Some(slot) = self.stack.listener_slot(listener) {
            self.stack.listeners[slot].max_segment = max_segment(most);
        }
    }

    /// Ends a connection attempt after this time, from now on.
    pub fn set_connect_timeout(&mut self, now: Time, flow: Flow, time: Duration) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.connect_within(now, slot, time);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4
    //# If keep-alives are included, the application MUST be able to turn them on or off for each TCP
    //# connection (MUST-24), and they MUST default to off (MUST-25).
    /// Whether a silent peer is probed (SO_KEEPALIVE).
    pub fn set_keep_alive(&mut self, now: Time, flow: Flow, on: bool) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.choose(now, slot, flag::KEEP_ALIVE, on);
        }
    }

    /// When a silent peer of a connection with keep-alive is probed; as the host's profile says if
    /// `None`.
    pub fn set_keep_alive_times(&mut self, now: Time, flow: Flow, times: Option<KeepAlive>) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.probe_after(now, slot, times);
        }
    }

    /// How long bytes may stay unacknowledged, or unsent because the peer's window is closed, before
    /// the connection ends with [`Failure::TimedOut`] (TCP_USER_TIMEOUT; RFC 5482, 3); also how long
    /// keep-alive waits for an answer. Looked at when something is sent again. At most a day; as the
    /// host's profile says if `None`.
    pub fn set_user_timeout(&mut self, flow: Flow, time: Option<Duration>) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.choose_user_timeout(slot, time);
        }
    }

    /// Sizes of a connection's buffers, in bytes, for good instead of growing (SO_RCVBUF, SO_SNDBUF): at least
    /// one, at most [`Limits::receive_buffer`](crate::Limits::receive_buffer) and
    /// [`Limits::send_buffer`](crate::Limits::send_buffer). They grow if `None`. What was offered to the
    /// peer stays offered.
    pub fn set_buffers(&mut self, flow: Flow, receive: Option<u32>, send: Option<u32>) {
        if let Some(slot) = self.stack.slot(flow) {
            let limits = self.stack.limits;
            let size = |size: Option<u32>, most: u32| size.map_or(0, |size| size.clamp(1, most));
            let (receive, send) = (size(receive, limits.receive_buffer), size(send, limits.send_buffer));
            self.stack.choices.change(slot, |chosen| &mut chosen.receive_buffer, receive);
            self.stack.choices.change(slot, |chosen| &mut chosen.send_buffer, send);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
    //# The application layer MUST be able to specify the Differentiated Services field for segments that are
    //# sent on a connection (MUST-48).
    //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.1.9
    //# It is not required, but the application SHOULD be able to change the Differentiated Services field
    //# during the connection lifetime (SHLD-21).
    /// Traffic class and hop limit of what a connection sends from now on.
    pub fn set_marking(&mut self, flow: Flow, marking: Marking) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.choices.change(slot, |chosen| &mut chosen.marking, marking.without_ecn());
        }
    }

    /// The same for connections that a listener will get.
    pub fn set_listener_marking(&mut self, listener: Listener, marking: Marking) {
        if let Some(slot) = self.stack.listener_slot(listener) {
            self.stack.listeners[slot].marking = marking.without_ecn();
        }
    }

    /// A number of the program's that comes with each event of the flow.
    pub fn set_owner(&mut self, flow: Flow, owner: u32) {
        if let Some(slot) = self.stack.slot(flow) {
            self.stack.flows[slot].owner = owner;
        }
    }

    /// Our and the peer's address of a connection.
    pub fn addresses(&self, flow: Flow) -> Option<(SocketAddr, SocketAddr)> {
        let slot = self.stack.slot(flow)?;
        let tuple = &self.stack.flows[slot].tuple;
        Some((tuple.local(), tuple.remote()))
    }

    /// State of a connection.
    pub fn info(&self, flow: Flow) -> Option<Info> {
        self.stack.slot(flow).map(|slot| self.stack.info(slot))
    }

    /// Connections that are not over, also those that the program has closed. TIME_WAIT of closed
    /// ones does not count: nothing is owed there.
    pub fn live_flows(&self) -> impl Iterator<Item = Flow> {
        self.stack.live_flows()
    }

    /// Whether [`output`](Host::output) has something to send now.
    pub fn has_output(&self) -> bool {
        self.stack.has_output() || !self.answers.pending.is_empty()
    }

    /// For tests: whether the pages of received bytes are those that connections need: with bytes
    /// that are unread or out of order, or where the next byte goes.
    pub fn pages_match(&self) -> bool {
        self.live_flows().filter_map(|flow| self.stack.slot(flow)).all(|slot| {
            let hot = &self.stack.flows[slot];
            if hot.has(flag::FIN_RECEIVED) {
                // Bytes beyond the FIN go with the connection.
                return true;
            }
            let mut needed = Vec::new();
            if hot.cold != NO_COLD {
                for &span in self.stack.ranges.iter(&self.stack.colds[hot.cold].held) {
                    needed.extend(super::store::pages_of(span));
                }
            }
            let unread: Vec<Seq> = super::store::pages_of(Span::new(hot.rcv_read, hot.rcv_nxt)).collect();
            needed.extend(&unread);
            let next = super::store::pages_of(Span::new(hot.rcv_nxt, hot.rcv_nxt + 1)).next();
            let stored: Vec<Seq> =
                self.store.received.starts(&self.store.streams[slot as usize].received).collect();
            needed.iter().all(|page| stored.contains(page))
                && stored.iter().all(|page| needed.contains(page) || Some(*page) == next)
        })
    }

    /// Bytes that can be unsent or unacknowledged on a connection now.
    pub(crate) fn send_space(&self, flow: Flow) -> u32 {
        let room = self.store.sent.room();
        self.stack.slot(flow).map_or(0, |slot| self.stack.send_space(slot, room))
    }

    /// Pages of the pools for received and for sent bytes that nobody uses.
    pub fn free_pages(&self) -> (usize, usize) {
        let pages = |bytes: u32| (bytes / super::store::PAGE) as usize;
        (pages(self.store.received.room()), pages(self.store.sent.room()))
    }
}

fn max_segment(most: Option<u16>) -> u16 {
    most.map_or(ANY_SEGMENT, |most| most.max(MAX_SEGMENT_LEAST))
}
