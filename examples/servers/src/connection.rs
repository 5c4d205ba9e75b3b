//! One connection: its input, its session, and how much it makes the server hold.
//!
//! Writes are quiet, so that an answer costs no completion. Once in a while one is not:
//! when it completes, the kernel has taken all before it, too. Until then nothing more is
//! answered, and soon nothing more is read: a client that does not read makes the server
//! hold one [`Output`] and about [`HELD_MAX`] bytes of input.
//!
//! On a signal a connection answers what was read, and sends the end of the stream behind
//! that. It then reads and discards until the client has closed: a close over unread
//! input would be a reset, which can destroy answers on their way.

use std::cmp::Ordering;
use std::mem;
use std::net::Shutdown;
use std::ops::ControlFlow::Continue;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use megapipe::{Channel, Event, Handle, OpId};

use crate::Service;
use crate::output::{Output, Piece};

/// Bytes of answers after which a write has to confirm that the client reads, and how
/// many a write counts at least: a queue of writes is bounded in number, too.
const CONFIRM_BYTES: usize = 64 << 10;
const WRITE_MIN: usize = 256;

/// Input that is taken while a write has to confirm, before reading stops.
const HELD_MAX: usize = 64 << 10;

/// Input that all connections of a server may hold: requests that came in part, and those
/// that wait for a client to read. The one that goes beyond it is refused.
const HELD_TOTAL_MAX: usize = 64 << 20;

/// A full output is always confirmed, which brings the rest of its input to the service
/// again.
const _: () = assert!(CONFIRM_BYTES <= Output::FULL);

/// Whether a connection goes on; if not, it is to be closed.
pub(crate) type Fate = anyhow::Result<bool>;

/// A connection of a channel.
pub(crate) struct Connection<Session> {
    pub(crate) handle: Handle,
    session: Session,
    /// Input that the service has not consumed, and the memory for it that is counted.
    held: Vec<u8>,
    counted: usize,
    /// The read, until it ends or its cancel is done.
    reading: Option<OpId>,
    /// What was written since the last confirmation.
    unconfirmed: usize,
    /// A write is to confirm that the client reads.
    confirming: bool,
    /// The client has sent its last byte.
    ended: bool,
    /// Input is discarded; the end of the stream goes out behind the last answer.
    finishing: bool,
    shut_down: bool,
}

/// What a connection works with.
pub(crate) struct Context<'a, S> {
    pub(crate) channel: &'a mut Channel,
    pub(crate) service: &'a S,
    /// Empty between two calls.
    pub(crate) output: &'a mut Output,
}

impl<Session: Default> Connection<Session> {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            session: Session::default(),
            held: Vec::new(),
            counted: 0,
            reading: None,
            unconfirmed: 0,
            confirming: false,
            ended: false,
            finishing: false,
            shut_down: false,
        }
    }

    /// Carries out what a completion says.
    pub(crate) fn serve<S>(&mut self, event: Event, context: &mut Context<'_, S>) -> Fate
    where
        S: Service<Session = Session>,
    {
        match event {
            Event::Read { result: Err(error), .. } if error.raw_os_error() == Some(libc::ECANCELED) => {
                self.reading = None;
            }
            Event::Read { result, data, more } => {
                self.ended = result? == 0;
                if !more {
                    self.reading = None;
                }
                if self.confirming && !self.finishing {
                    self.held.extend_from_slice(data.bytes());
                } else if !self.finishing && !self.answer(data.bytes(), context)? {
                    return Ok(false);
                }
            }
            Event::Write { result, .. } => {
                result?;
                (self.confirming, self.unconfirmed) = (false, 0);
                if !self.answer(&[], context)? {
                    return Ok(false);
                }
            }
            Event::Disconnect(result) => result?,
            _ => {}
        }
        self.go_on(context.channel)
    }

    /// Answers only what was read, then ends.
    pub(crate) fn finish(&mut self, channel: &mut Channel) -> Fate {
        self.finishing = true;
        self.go_on(channel)
    }

    /// Reads on, ends the stream or has the connection closed, as soon as the client has
    /// read enough.
    pub(crate) fn go_on(&mut self, channel: &mut Channel) -> Fate {
        if self.confirming {
            if let Some(read) = self.reading
                && self.held.len() >= HELD_MAX
            {
                // What it still brings is held, too.
                let _ = channel.cancel(read);
            }
            return Ok(true);
        }
        if self.ended {
            return Ok(false);
        }
        if self.finishing && !mem::replace(&mut self.shut_down, true) {
            channel.shutdown(self.handle, Shutdown::Write)?;
        }
        if self.reading.is_none() {
            self.reading = Some(channel.read_stream(self.handle)?);
        }
        Ok(true)
    }

    /// Gives the service what is held and `input`, and writes what it answers. False if
    /// it ends the connection.
    fn answer<S>(&mut self, input: &[u8], context: &mut Context<'_, S>) -> Fate
    where
        S: Service<Session = Session>,
    {
        let Context { channel, service, output } = context;
        let flow = if self.held.is_empty() {
            let flow = service.receive(&mut self.session, input, output);
            if let Continue(consumed) = flow {
                self.held.extend_from_slice(&input[consumed..]);
            }
            flow
        } else {
            self.held.extend_from_slice(input);
            let flow = service.receive(&mut self.session, &self.held, output);
            if let Continue(consumed) = flow {
                self.held.drain(..consumed);
            }
            // An idle connection holds no memory.
            if self.held.is_empty() {
                self.held = Vec::new();
            }
            flow
        };
        let written = self.write(channel, output);
        output.clear();
        written.map(|()| flow.is_continue())
    }

    /// Queues the output for writing; the last write has to confirm if it is time.
    fn write(&mut self, channel: &mut Channel, output: &Output) -> anyhow::Result<()> {
        let mut pieces = output.pieces().peekable();
        while let Some(piece) = pieces.next() {
            let length = match piece {
                Piece::Text(text) => text.len(),
                Piece::Shared(value) => value.len(),
            };
            self.unconfirmed += length.max(WRITE_MIN);
            if pieces.peek().is_none() && self.unconfirmed >= CONFIRM_BYTES {
                self.confirming = true;
                match piece {
                    Piece::Text(text) => channel.write(self.handle, text.to_vec())?,
                    Piece::Shared(value) => channel.write(self.handle, value.clone())?,
                };
                break;
            }
            match piece {
                Piece::Text(text) => channel.write_copy(self.handle, text)?,
                Piece::Shared(value) => channel.write_quiet(self.handle, value.clone())?,
            }
        }
        Ok(())
    }

    /// Counts what it holds among what all connections hold; false if that is too much.
    pub(crate) fn is_within_bounds(&mut self, total: &AtomicUsize) -> bool {
        let (before, now) = (self.counted, self.held.capacity());
        self.counted = now;
        match now.cmp(&before) {
            Ordering::Equal => true,
            Ordering::Less => total.fetch_sub(before - now, Relaxed) > 0,
            Ordering::Greater => total.fetch_add(now - before, Relaxed) + now - before <= HELD_TOTAL_MAX,
        }
    }

    /// It holds nothing any more.
    pub(crate) fn give_back(&self, total: &AtomicUsize) {
        total.fetch_sub(self.counted, Relaxed);
    }
}
