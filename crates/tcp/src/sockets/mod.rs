//! Sockets: a host with descriptors, the calls of POSIX on them, and readiness.
//!
//! [`Sockets`] owns a [`Host`] and gives its connections small numbers, the lowest free one first,
//! so that a program can index an array by them. No call blocks: a call that would returns
//! [`Errno::WouldBlock`], and readiness follows, either of one socket
//! ([`readiness`](Sockets::readiness)) or of many in a set ([`wait`](Sockets::wait)), level or
//! edge, as with epoll(7).
//!
//! Packets and time come from the caller, as for a host: [`input`](Sockets::input),
//! [`output`](Sockets::output), [`advance`](Sockets::advance), [`deadline`](Sockets::deadline).
//!
//! What differs from POSIX:
//! - `bind` reserves nothing: a conflict is reported by `listen` or `connect`.
//! - `listen` without `bind` to a port fails with EINVAL; the unspecified address of either family
//!   stands for all addresses of the host.
//! - `close` with a linger time does not block: the host resets the connection when it is over.

mod error;
mod interests;
mod readiness;
mod stream;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use packet::pump::Endpoint;
use packet::{Batch, Frame};

use crate::config::{KeepAlive, Marking};
use crate::control::{Control, Cubic};
use crate::core::chosen::MAX_SEGMENT_LEAST;
use crate::core::listen::Pattern;
use crate::core::state::State;
use crate::event::{Event, Flow, Listener, Ready};
use crate::host::Host;
use crate::time::Time;

pub use error::Errno;
pub use interests::{Bits, Interests};
pub use readiness::{Notice, Readiness, Set, Trigger};
pub use stream::How;

/// A socket's descriptor. After `close` its number is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Socket(pub u32);

/// Options of a socket. A connection inherits those of its listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TCP_NODELAY: small segments go out at once.
    pub no_delay: bool,
    /// TCP_CORK: less than a full segment waits for more.
    pub cork: bool,
    /// TCP_MAXSEG: the largest segment that `connect` or a listener offers, and that is sent. From 88 to
    /// 32,767 bytes.
    pub max_segment: Option<u16>,
    /// SO_KEEPALIVE: a silent peer is probed.
    pub keep_alive: bool,
    /// SO_LINGER: how long `close` lets the peer acknowledge before the connection is reset; zero
    /// resets at once.
    pub linger: Option<Duration>,
    /// How long `connect` tries, if not for as long as the host does
    /// ([`Profile::attempt`](crate::Profile::attempt)).
    pub connect_within: Option<Duration>,
    /// TCP_USER_TIMEOUT: how long bytes may stay unacknowledged or unsent, if not for as long as with
    /// the host ([`Profile::give_up`](crate::Profile::give_up)).
    pub user_timeout: Option<Duration>,
    /// TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, if not those of the host.
    pub keep_alive_times: Option<KeepAlive>,
    /// IP_TOS, IP_TTL; IPV6_TCLASS, IPV6_UNICAST_HOPS.
    pub marking: Marking,
}

/// Values of TCP_MAXSEG, as with Linux.
const MAX_SEGMENTS: RangeInclusive<u16> = MAX_SEGMENT_LEAST..=32_767;

/// What a socket is at present.
#[derive(Clone, Copy)]
enum Kind {
    /// Neither connected nor listening.
    New,
    Listener {
        listener: Listener,
        /// A connection waits to be accepted.
        incoming: bool,
    },
    Stream(Stream),
}

/// A socket that is connected, or connects.
#[derive(Clone, Copy)]
struct Stream {
    flow: Flow,
    /// There was no room left to write: room is an edge.
    full: bool,
    /// The peer has ended its stream.
    ended: bool,
    /// The program reads no more.
    read_shut: bool,
    /// The program was given the failure.
    reported: bool,
}

/// What becomes of a socket when something happened to its connection. Room to write is an edge only
/// after there was none.
const EDGES: [(Ready, Readiness); 4] = [
    (Ready::CONNECTED, Readiness::WRITABLE),
    (Ready::READABLE, Readiness::READABLE),
    (Ready::END, Readiness::READABLE.with(Readiness::READ_HANGUP)),
    (Ready::FAILED, Readiness::ALL),
];

/// An open descriptor.
struct Entry {
    kind: Kind,
    bound: Option<SocketAddr>,
    options: Options,
    /// Sets that it is in.
    members: Vec<Member>,
}

/// A place in a set.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Member {
    set: u32,
    place: u32,
}

/// A host with descriptors. See the [module](self).
pub struct Sockets<C: Control = Cubic> {
    host: Host<C>,
    entries: Vec<Option<Entry>>,
    /// Descriptors that are free again, the lowest first.
    free: BinaryHeap<Reverse<u32>>,
    /// Descriptors at most.
    bound: usize,
    sets: Vec<Option<Interests<Socket>>>,
    /// Sockets of listeners, by the listener's slot.
    listeners: Vec<u32>,
}

impl<C: Control> Endpoint for Sockets<C> {
    type Time = Time;

    fn input<'a>(&mut self, now: Time, frames: impl Iterator<Item = Frame<'a>>) {
        Sockets::input(self, now, frames);
    }

    fn advance(&mut self, now: Time) {
        Sockets::advance(self, now);
    }

    fn deadline(&self) -> Option<Time> {
        Sockets::deadline(self)
    }

    fn output(&mut self, now: Time, batch: &mut Batch) -> bool {
        Sockets::output(self, now, batch)
    }
}

impl<C: Control> Sockets<C> {
    /// Sockets over this host, at most `bound` at the same time.
    pub fn new(host: Host<C>, bound: usize) -> Sockets<C> {
        Sockets {
            host,
            entries: Vec::new(),
            free: BinaryHeap::new(),
            bound,
            sets: Vec::new(),
            listeners: Vec::new(),
        }
    }

    /// How many sockets are open.
    pub fn open(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The sockets that are open.
    pub fn sockets(&self) -> impl Iterator<Item = Socket> {
        let is_open = |&(_, entry): &(usize, &Option<Entry>)| entry.is_some();
        self.entries.iter().enumerate().filter(is_open).map(|(number, _)| Socket(number as u32))
    }

    /// The host below, for its counters and addresses.
    pub fn host(&self) -> &Host<C> {
        &self.host
    }

    /// Takes received packets.
    pub fn input<'a>(&mut self, now: Time, frames: impl IntoIterator<Item = Frame<'a>>) {
        self.host.input(now, frames);
        self.events();
    }

    /// As [`input`](Sockets::input), where several hosts have the same addresses: see
    /// [`Host::input_shared`].
    pub fn input_shared<'a>(
        &mut self,
        now: Time,
        frames: impl IntoIterator<Item = Frame<'a>>,
        pass_on: impl FnMut(Frame<'a>) -> bool,
    ) {
        self.host.input_shared(now, frames, pass_on);
        self.events();
    }

    /// Does what is due at this time.
    pub fn advance(&mut self, now: Time) {
        self.host.advance(now);
        self.events();
    }

    /// When [`advance`](Sockets::advance) has something to do next; possibly a little early.
    pub fn deadline(&self) -> Option<Time> {
        self.host.deadline()
    }

    /// Puts packets into the batch. Returns whether there are more.
    pub fn output(&mut self, now: Time, batch: &mut Batch) -> bool {
        let more = self.host.output(now, batch);
        self.events();
        more
    }

    /// A new socket.
    pub fn socket(&mut self) -> Result<Socket, Errno> {
        self.insert(Kind::New, Options::default())
    }

    /// Gives a socket its local address. Port 0 leaves the port to `connect`.
    pub fn bind(&mut self, socket: Socket, address: SocketAddr) -> Result<(), Errno> {
        let owned = address.ip().is_unspecified() || self.host.owns(address.ip());
        let entry = self.entry_mut(socket)?;
        if !matches!(entry.kind, Kind::New) || entry.bound.is_some() {
            return Err(Errno::Invalid);
        }
        if !owned {
            return Err(Errno::NotAvailable);
        }
        entry.bound = Some(address);
        Ok(())
    }

    /// Listens on the bound port; at most `backlog` connections wait to be accepted.
    pub fn listen(&mut self, socket: Socket, backlog: usize) -> Result<(), Errno> {
        let entry = self.entry(socket)?;
        let bound = entry.bound.filter(|bound| bound.port() != 0).ok_or(Errno::Invalid)?;
        match entry.kind {
            Kind::New => {}
            Kind::Listener { .. } => return Ok(()),
            Kind::Stream(_) => return Err(Errno::Invalid),
        }
        let Options { marking, max_segment, .. } = entry.options;
        let pattern = Pattern { address: specified(bound.ip()), port: Some(bound.port()) };
        let listener = self.host.listen(pattern, backlog)?;
        self.host.set_listener_marking(listener, marking);
        self.host.set_listener_max_segment(listener, max_segment);
        let slot = listener.slot as usize;
        if self.listeners.len() <= slot {
            self.listeners.resize(slot + 1, u32::MAX);
        }
        self.listeners[slot] = socket.0;
        self.entry_mut(socket)?.kind = Kind::Listener { listener, incoming: false };
        Ok(())
    }

    /// The next connection of a listener, as a new socket.
    pub fn accept(&mut self, now: Time, socket: Socket) -> Result<Socket, Errno> {
        let entry = self.entry(socket)?;
        let Kind::Listener { listener, .. } = entry.kind else { return Err(Errno::Invalid) };
        let options = entry.options;
        if self.entries.len() >= self.bound && self.free.is_empty() {
            return Err(Errno::TooMany);
        }
        // If more connections wait, the host reports them again.
        self.entry_mut(socket)?.kind = Kind::Listener { listener, incoming: false };
        let flow = self.host.accept(listener).ok_or(Errno::WouldBlock)?;
        let accepted = self.insert(Kind::Stream(Stream::new(flow)), options)?;
        self.host.set_owner(flow, accepted.0);
        self.apply(now, flow, options);
        self.events();
        Ok(accepted)
    }

    /// Begins a connection. Returns EINPROGRESS; the socket becomes writable when it is open, or
    /// has failed.
    pub fn connect(&mut self, now: Time, socket: Socket, remote: SocketAddr) -> Result<(), Errno> {
        self.connect_from(now, socket, None, remote)
    }

    /// As [`connect`](Sockets::connect), from this address rather than the bound one. If a
    /// connection has it, EADDRNOTAVAIL: then another port can be tried.
    pub fn connect_from(
        &mut self,
        now: Time,
        socket: Socket,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<(), Errno> {
        let entry = self.entry(socket)?;
        match entry.kind {
            Kind::New => {}
            Kind::Listener { .. } => return Err(Errno::NotSupported),
            Kind::Stream(stream) => {
                let info = self.host.info(stream.flow).ok_or(Errno::Invalid)?;
                self.failure(socket)?;
                let opening = matches!(info.state, State::SynSent | State::SynReceived);
                return Err(if opening { Errno::Already } else { Errno::IsConnected });
            }
        }
        if remote.port() == 0 || remote.ip().is_unspecified() {
            return Err(Errno::NotAvailable);
        }
        let (bound, options) = (local.or(entry.bound), entry.options);
        let address = bound.and_then(|bound| specified(bound.ip()));
        let port = bound.map(|bound| bound.port()).filter(|&port| port != 0);
        let flow = self.host.connect(now, address, port, remote)?;
        self.host.set_owner(flow, socket.0);
        self.apply(now, flow, options);
        if let Some(time) = options.connect_within {
            self.host.set_connect_timeout(now, flow, time);
        }
        self.entry_mut(socket)?.kind = Kind::Stream(Stream::new(flow));
        Err(Errno::InProgress)
    }

    /// Closes a socket, as its linger option says. What was written is still sent; bytes that were
    /// not read reset the connection.
    pub fn close(&mut self, now: Time, socket: Socket) -> Result<(), Errno> {
        let entry = self.entries.get_mut(socket.0 as usize).and_then(Option::take);
        let entry = entry.ok_or(Errno::BadDescriptor)?;
        self.free.push(Reverse(socket.0));
        for member in entry.members {
            if let Some(set) = &mut self.sets[member.set as usize] {
                set.remove(member.place);
            }
        }
        match entry.kind {
            Kind::New => {}
            Kind::Listener { listener, .. } => self.host.unlisten(now, listener),
            Kind::Stream(Stream { flow, .. }) => match entry.options.linger {
                None => self.host.close(now, flow),
                Some(Duration::ZERO) => self.host.abort(now, flow),
                Some(linger) => self.host.close_within(now, flow, linger),
            },
        }
        self.events();
        Ok(())
    }

    /// A socket's options.
    pub fn options(&self, socket: Socket) -> Result<Options, Errno> {
        Ok(self.entry(socket)?.options)
    }

    /// Sets a socket's options.
    pub fn set_options(&mut self, now: Time, socket: Socket, options: Options) -> Result<(), Errno> {
        if options.max_segment.is_some_and(|most| !MAX_SEGMENTS.contains(&most)) {
            return Err(Errno::Invalid);
        }
        let entry = self.entry_mut(socket)?;
        entry.options = options;
        match entry.kind {
            Kind::Stream(Stream { flow, .. }) => self.apply(now, flow, options),
            Kind::Listener { listener, .. } => {
                self.host.set_listener_marking(listener, options.marking);
                self.host.set_listener_max_segment(listener, options.max_segment);
            }
            Kind::New => {}
        }
        Ok(())
    }

    fn apply(&mut self, now: Time, flow: Flow, options: Options) {
        self.host.set_no_delay(now, flow, options.no_delay);
        self.host.set_cork(now, flow, options.cork);
        self.host.set_max_segment(flow, options.max_segment);
        self.host.set_keep_alive_times(now, flow, options.keep_alive_times);
        self.host.set_keep_alive(now, flow, options.keep_alive);
        self.host.set_user_timeout(flow, options.user_timeout);
        self.host.set_marking(flow, options.marking);
    }

    /// What TCP_MAXSEG reports: of a connection the payload of a segment without options, else what was set, or
    /// the default (RFC 9293, MUST-15).
    pub fn segment_size(&self, socket: Socket) -> Result<u16, Errno> {
        match (self.info(socket), self.options(socket)?.max_segment) {
            (Ok(info), _) => Ok(info.mss),
            (Err(Errno::NotConnected), most) => Ok(most.unwrap_or(536)),
            (Err(error), _) => Err(error),
        }
    }

    /// Local address: that of the connection, else the bound one.
    pub fn local_address(&self, socket: Socket) -> Result<SocketAddr, Errno> {
        let entry = self.entry(socket)?;
        let connected = match entry.kind {
            Kind::Stream(Stream { flow, .. }) => self.host.addresses(flow).map(|(local, _)| local),
            _ => None,
        };
        connected.or(entry.bound).ok_or(Errno::Invalid)
    }

    /// The peer's address.
    pub fn peer_address(&self, socket: Socket) -> Result<SocketAddr, Errno> {
        let flow = self.stream(socket)?.flow;
        self.host.addresses(flow).map(|(_, remote)| remote).ok_or(Errno::NotConnected)
    }

    fn insert(&mut self, kind: Kind, options: Options) -> Result<Socket, Errno> {
        let entry = Entry { kind, bound: None, options, members: Vec::new() };
        if let Some(Reverse(place)) = self.free.pop() {
            self.entries[place as usize] = Some(entry);
            return Ok(Socket(place));
        }
        if self.entries.len() >= self.bound {
            return Err(Errno::TooMany);
        }
        self.entries.push(Some(entry));
        Ok(Socket(self.entries.len() as u32 - 1))
    }

    fn entry(&self, socket: Socket) -> Result<&Entry, Errno> {
        self.entries.get(socket.0 as usize).and_then(Option::as_ref).ok_or(Errno::BadDescriptor)
    }

    fn entry_mut(&mut self, socket: Socket) -> Result<&mut Entry, Errno> {
        self.entries.get_mut(socket.0 as usize).and_then(Option::as_mut).ok_or(Errno::BadDescriptor)
    }

    fn stream(&self, socket: Socket) -> Result<Stream, Errno> {
        match self.entry(socket)?.kind {
            Kind::Stream(stream) => Ok(stream),
            _ => Err(Errno::NotConnected),
        }
    }

    fn stream_mut(&mut self, socket: Socket) -> Result<&mut Stream, Errno> {
        match &mut self.entry_mut(socket)?.kind {
            Kind::Stream(stream) => Ok(stream),
            _ => Err(Errno::NotConnected),
        }
    }

    /// Moves the host's events to the sockets and sets that they concern.
    fn events(&mut self) {
        while let Some(event) = self.host.event() {
            let (number, bits) = match event {
                Event::Flow { flow, owner, ready } => {
                    let socket = Socket(owner);
                    let Ok(stream) = self.stream_mut(socket) else { continue };
                    if stream.flow != flow {
                        continue;
                    }
                    let room = ready.has(Ready::WRITABLE) && std::mem::take(&mut stream.full);
                    stream.ended |= ready.has(Ready::END);
                    let edges = EDGES.into_iter().filter(|&(edge, _)| ready.has(edge));
                    let bits = edges.fold(Readiness::NONE, |bits, (_, edge)| bits.with(edge));
                    (owner, if room { bits.with(Readiness::WRITABLE) } else { bits })
                }
                Event::Incoming(listener) => {
                    let Some(&number) = self.listeners.get(listener.slot as usize) else { continue };
                    let Ok(entry) = self.entry_mut(Socket(number)) else { continue };
                    entry.kind = Kind::Listener { listener, incoming: true };
                    (number, Readiness::READABLE)
                }
                // No listener here asks.
                Event::Ask { .. } => continue,
            };
            if !bits.is_none() {
                self.wake(number, bits);
            }
        }
    }

    /// Puts a socket into the ready lists of its sets.
    fn wake(&mut self, number: u32, bits: Readiness) {
        let Some(Some(entry)) = self.entries.get(number as usize) else { return };
        for member in &entry.members {
            if let Some(set) = &mut self.sets[member.set as usize] {
                set.wake(member.place, bits);
            }
        }
    }
}

impl Stream {
    fn new(flow: Flow) -> Stream {
        Stream { flow, full: false, ended: false, read_shut: false, reported: false }
    }
}

fn specified(address: IpAddr) -> Option<IpAddr> {
    Some(address).filter(|address| !address.is_unspecified())
}
