//! What a program and its stack's thread send each other. A message owns its chunk: the side that pops
//! the message owns the chunk from then on.

use std::any::Any;
use std::net::SocketAddr;
use std::thread::Thread;

use tcp::sockets::{Errno as Error, Socket};

use crate::errno::Errno;
use crate::stack::Stack;

/// What a socket becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Listener,
    Connection,
}

/// What the program wants of the stack.
pub(super) enum Job {
    /// To run this, and report that with [`Event::Done`].
    Run(Box<Call>),
    /// To report what happens to a socket from now on.
    Watch(Socket, Kind),
    /// To send these bytes.
    Write(Socket, Chunk),
    /// [`Event::Room`] once all bytes before it are with the TCP.
    Full(Socket),
    /// The bytes were read.
    Read(Socket, Chunk),
    /// The bytes came after their socket was closed, and nobody reads them.
    Unread(Chunk),
    /// A connection of this listener was accepted.
    Took(Socket),
    Close(Socket),
    Abort(Socket),
    /// To send what was written, for a second at most, and to end.
    End,
}

/// What a function returns.
pub(super) type Outcome = Box<dyn Any + Send>;

/// A function for the stack's thread, and the thread that waits for its result.
pub(super) struct Call {
    pub(super) work: Box<dyn FnOnce(&mut Stack) -> Outcome + Send>,
    pub(super) caller: Thread,
}

/// What the stack has to report.
pub(super) enum Event {
    /// The result of the [`Job::Run`].
    Done(Outcome),
    /// A connection of this listener.
    Accepted {
        listener: Socket,
        socket: Socket,
        peer: Option<SocketAddr>,
    },
    Connected(Socket),
    Data(Socket, Chunk),
    /// All bytes came before it: the end of the stream, or of what a failed connection had received.
    End(Socket),
    Failed(Socket, Error),
    /// The bytes are with the TCP. The program does not wait for this.
    Written(Socket, Chunk),
    Room(Socket),
    /// The device does not work.
    Broken(Errno),
    /// The stack has panicked.
    Torn,
}

/// Bytes of a chunk at most.
pub(super) const CHUNK: usize = 4080;

/// Bytes on their way between program and stack.
pub(super) struct Chunk(Box<Page>);

struct Page {
    start: u16,
    end: u16,
    is_wanted: bool,
    bytes: [u8; CHUNK],
}

impl Chunk {
    pub(super) fn unread(&self) -> &[u8] {
        &self.0.bytes[self.0.start.into()..self.0.end.into()]
    }

    /// Bytes that were put in.
    pub(super) fn len(&self) -> usize {
        self.0.end.into()
    }

    /// Takes so many of the unread bytes away.
    pub(super) fn consume(&mut self, len: usize) {
        self.0.start += len as u16;
    }

    /// All of its room: what was in it is forgotten.
    pub(super) fn room(&mut self) -> &mut [u8; CHUNK] {
        &mut self.0.bytes
    }

    /// So many bytes of its room were filled.
    pub(super) fn set_len(&mut self, len: usize) {
        (self.0.start, self.0.end) = (0, len as u16);
    }

    /// Of bytes that were received: whether the stack may be waiting for this chunk to come back.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.is_wanted
    }

    pub(super) fn set_wanted(&mut self, is_wanted: bool) {
        self.0.is_wanted = is_wanted;
    }
}

/// Chunks that are kept for later.
const SPARE_MAX: usize = 512;

/// Chunks of one of the two threads that are not in use. The last one used comes first: it is in the cache.
pub(super) struct Spare(Vec<Chunk>);

impl Spare {
    pub(super) fn new() -> Spare {
        Spare(Vec::new())
    }

    pub(super) fn take(&mut self) -> Chunk {
        let new = || Chunk(Box::new(Page { start: 0, end: 0, is_wanted: false, bytes: [0; CHUNK] }));
        self.0.pop().unwrap_or_else(new)
    }

    pub(super) fn keep(&mut self, chunk: Chunk) {
        if self.0.len() < SPARE_MAX {
            self.0.push(chunk);
        }
    }
}
