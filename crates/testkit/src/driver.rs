//! A channel with bounded waits: a test that would hang fails instead.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use megapipe::{Channel, Completion, Config, Event, Handle, OpId, ReadData};

/// How long anything may take that happens at all. No test waits this long unless it
/// is about to fail.
pub const WATCHDOG: Duration = Duration::from_secs(30);

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
}

impl Driver {
    /// Makes a channel that must come up.
    pub fn new(config: Config) -> Driver {
        Driver { channel: Channel::new(config).expect("the engine worked for the probe before this test") }
    }

    /// Registers a socket in the given form.
    pub fn add(&mut self, socket: OwnedFd, form: Form, cookie: u64) -> Handle {
        match form {
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
        match self.channel.dispatch(Some(WATCHDOG)) {
            Ok(Some(completion)) => completion,
            Ok(None) => panic!("no completion within {WATCHDOG:?}"),
            Err(error) => panic!("dispatch failed: {error}"),
        }
    }

    /// The next completion within `timeout`.
    #[track_caller]
    pub fn next_within(&mut self, timeout: Duration) -> Option<Completion> {
        self.channel.dispatch(Some(timeout)).unwrap_or_else(|error| panic!("dispatch failed: {error}"))
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
