//! A channel with bounded waits: a test that would hang fails instead.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use megapipe::{
    AcceptAs, AcceptCount, Channel, Completion, Config, DispatchError, Event, Handle, OpId, OpenError,
    ReadData, RegisterError, Source, SubmitError,
};

use crate::stack::{self, StandIn};

/// How long anything may take that happens at all. No test waits this long unless it
/// is about to fail.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// How long to look for what must not happen.
pub const GLANCE: Duration = Duration::from_millis(20);

/// How a socket is given to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a descriptor.
    Descriptor,
    /// As a lightweight socket.
    Lightweight,
}

impl Form {
    /// Both.
    pub const ALL: [Form; 2] = [Form::Descriptor, Form::Lightweight];
}

/// A channel whose waits end in a panic rather than never.
pub struct Driver {
    channel: Channel,
    /// Over a stack: accepts the connections that stand-ins are for.
    pairs: Vec<Handle>,
    /// Accepted before their stand-in was registered, by their peer.
    accepted: Vec<(SocketAddr, Source)>,
    /// Completions that surfaced meanwhile.
    surfaced: VecDeque<Completion>,
}

impl Driver {
    /// Makes a channel that must come up.
    pub fn new(mut config: Config) -> Driver {
        if stack::is_on() {
            // Of `Driver::pairs`.
            config.handles_max += 2;
            config.lwsockets_max += 2;
        }
        let channel = Channel::new(config).expect("the engine worked for the probe before this test");
        let (pairs, accepted, surfaced) = Default::default();
        let mut driver = Driver { channel, pairs, accepted, surfaced };
        if stack::is_on() {
            stack::attach(&mut driver.channel);
        }
        driver
    }

    /// Registers a file, over a stack the socket that it stands for.
    ///
    /// # Errors
    ///
    /// As for [`Channel::register`].
    pub fn register(&mut self, source: impl Into<Source>, cookie: u64) -> Result<Handle, RegisterError> {
        let source = source.into();
        let Source::Fd(fd) = &source else { return self.channel.register(source, cookie) };
        match StandIn::of(fd) {
            StandIn::Nothing => self.channel.register(source, cookie),
            StandIn::Listener(address) => match self.channel.listen_on(address, 4096, cookie) {
                Ok(handle) => Ok(handle),
                Err(OpenError::Io(error)) => Err(error.into()),
                Err(_) => Err(RegisterError::HandlesFull),
            },
            StandIn::Connection(peer) => {
                let socket = self.accept_from(peer);
                self.channel.register(socket, cookie)
            }
        }
    }

    /// As [`Channel::accept`]; over a stack always as lightweight sockets.
    ///
    /// # Errors
    ///
    /// As for [`Channel::accept`].
    pub fn accept(
        &mut self,
        handle: Handle,
        count: AcceptCount,
        kind: AcceptAs,
    ) -> Result<OpId, SubmitError> {
        self.channel.accept(handle, count, if stack::is_on() { AcceptAs::LwSocket } else { kind })
    }

    /// As [`Channel::accept_with_peer`]; over a stack always as lightweight sockets.
    ///
    /// # Errors
    ///
    /// As for [`Channel::accept_with_peer`].
    pub fn accept_with_peer(
        &mut self,
        handle: Handle,
        count: AcceptCount,
        kind: AcceptAs,
    ) -> Result<OpId, SubmitError> {
        self.channel.accept_with_peer(handle, count, if stack::is_on() { AcceptAs::LwSocket } else { kind })
    }

    /// The stack's socket of the connection from this peer.
    fn accept_from(&mut self, peer: SocketAddr) -> Source {
        if self.pairs.is_empty() {
            let listeners = StandIn::listeners().map(|address| self.channel.listen_on(address, 4096, 0));
            self.pairs = listeners.map(|handle| handle.expect("the tables have room")).to_vec();
        }
        let listener = self.pairs[usize::from(peer.is_ipv6())];
        loop {
            if let Some(place) = self.accepted.iter().position(|(from, _)| *from == peer) {
                return self.accepted.swap_remove(place).1;
            }
            let accept = self.channel.accept_with_peer(listener, AcceptCount::Exactly(1), AcceptAs::LwSocket);
            let accept = accept.expect("the tables have room");
            loop {
                let completion = dispatch(&mut self.channel, WATCHDOG).expect("the handshake of a pair");
                match completion.event {
                    Event::Accept { result, .. } if completion.op == accept => {
                        let accepted = result.expect("a connection");
                        let from = accepted.peer.expect("the peer's address was asked for");
                        self.accepted.push((from, accepted.socket));
                        break;
                    }
                    _ => self.surfaced.push_back(completion),
                }
            }
        }
    }

    /// Registers a socket in the given form.
    pub fn add(&mut self, socket: OwnedFd, form: Form, cookie: u64) -> Handle {
        match form {
            _ if stack::is_on() => self.register(socket, cookie).expect("the table has room"),
            Form::Descriptor => self.channel.register(socket, cookie).expect("the table has room"),
            Form::Lightweight => {
                let socket = self.channel.to_lwsocket(socket).expect("the table has room");
                self.channel.register(socket, cookie).expect("the table has room")
            }
        }
    }

    /// The next completion.
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "a driver has no last completion")]
    pub fn next(&mut self) -> Completion {
        if let Some(completion) = self.surfaced.pop_front() {
            return completion;
        }
        match dispatch(&mut self.channel, WATCHDOG) {
            Some(completion) => completion,
            None => panic!("no completion within {WATCHDOG:?}"),
        }
    }

    /// The next completion within `timeout`.
    #[track_caller]
    pub fn next_within(&mut self, timeout: Duration) -> Option<Completion> {
        if let Some(completion) = self.surfaced.pop_front() {
            return Some(completion);
        }
        dispatch(&mut self.channel, timeout)
    }

    /// Nothing surfaces, for as long as a test can look.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        if let Some(completion) = self.next_within(GLANCE) {
            panic!("nothing should surface, but {completion:?} did");
        }
    }

    /// The next completion is this read's; its result and whether it goes on.
    #[track_caller]
    pub fn expect_read(&mut self, op: OpId) -> (std::io::Result<Vec<u8>>, bool) {
        let completion = self.next();
        assert_eq!(completion.op, op, "another operation surfaced: {completion:?}");
        let Event::Read { result, data, more } = completion.event else {
            panic!("no read: {:?}", completion.event);
        };
        (result.map(|count| gather(&data, count)), more)
    }

    /// The next completion is this write's.
    #[track_caller]
    pub fn expect_write(&mut self, op: OpId) -> std::io::Result<usize> {
        let completion = self.next();
        assert_eq!(completion.op, op, "another operation surfaced: {completion:?}");
        match completion.event {
            Event::Write { result, .. } => result,
            other => panic!("no write: {other:?}"),
        }
    }

    /// Reads `len` bytes with single reads.
    #[track_caller]
    pub fn read_exactly(&mut self, handle: Handle, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < len {
            let op = self.channel.read(handle).expect("the handle can be read");
            let (result, _) = self.expect_read(op);
            let bytes = result.expect("the read succeeds");
            assert!(!bytes.is_empty(), "end of file after {} of {len} bytes", all.len());
            all.extend_from_slice(&bytes);
        }
        assert_eq!(all.len(), len, "more bytes than were sent");
        all
    }

    /// Runs the peer's side on a thread while the channel goes on; what surfaces
    /// meanwhile comes back with the peer's result.
    pub fn while_peer<T: Send>(&mut self, peer: impl FnOnce() -> T + Send) -> (T, Vec<Completion>) {
        let mut seen = Vec::new();
        let result = self.drive_while(peer, |_, completion| seen.push(completion));
        (result, seen)
    }

    /// As [`Self::while_peer`]; nothing may surface.
    #[track_caller]
    pub fn quietly_while<T: Send>(&mut self, peer: impl FnOnce() -> T + Send) -> T {
        let (result, seen) = self.while_peer(peer);
        assert!(seen.is_empty(), "nothing should surface, but {seen:?} did");
        result
    }

    /// Runs the peer's side on a thread; completions go to `handle` meanwhile.
    pub fn drive_while<T: Send>(
        &mut self,
        peer: impl FnOnce() -> T + Send,
        mut handle: impl FnMut(&mut Channel, Completion),
    ) -> T {
        std::thread::scope(|scope| {
            let peer = scope.spawn(peer);
            while !peer.is_finished() {
                if let Some(completion) = self.next_within(Duration::from_millis(2)) {
                    handle(&mut self.channel, completion);
                }
            }
            peer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Goes on until `done`; completions go to `handle`.
    #[track_caller]
    pub fn drive_until(
        &mut self,
        mut done: impl FnMut(&mut Channel) -> bool,
        mut handle: impl FnMut(&mut Channel, Completion),
    ) {
        let start = Instant::now();
        while !done(&mut self.channel) {
            assert!(start.elapsed() < WATCHDOG, "it did not come about within {WATCHDOG:?}");
            if let Some(completion) = self.next_within(Duration::from_millis(2)) {
                handle(&mut self.channel, completion);
            }
        }
    }
}

impl Deref for Driver {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// Dispatches for so long, also where the process is stopped and resumed meanwhile.
#[track_caller]
fn dispatch(channel: &mut Channel, timeout: Duration) -> Option<Completion> {
    let start = Instant::now();
    loop {
        match channel.dispatch(Some(timeout.saturating_sub(start.elapsed()))) {
            Err(DispatchError::Interrupted) => {}
            dispatched => return dispatched.unwrap_or_else(|error| panic!("dispatch failed: {error}")),
        }
    }
}

/// The bytes a read brought, wherever they are; `count` of them.
#[track_caller]
pub fn gather(data: &ReadData, count: usize) -> Vec<u8> {
    let all = match data {
        ReadData::Vectored(pieces) => pieces.concat(),
        other => other.bytes().to_vec(),
    };
    assert_eq!(all.len(), count, "the result counts other bytes than the data holds");
    all
}
