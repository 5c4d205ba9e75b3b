//! One connection: its session, and how much it makes the server hold.
//!
//! Writes are quiet, so that an answer costs no completion. Once in a while one is not: when it
//! completes, all before it have been taken too. Until then nothing more is answered, and soon
//! nothing more is read, so that a client which does not read makes the server hold a bounded
//! amount: one round's output, and [`HELD_MAX`] of input.
//!
//! A connection that is drained answers what it has received, and sends the end of the stream
//! behind the last answer. It then reads and discards until the client has closed: a close over
//! unread input would be a reset, which can destroy answers on their way.

use std::net::Shutdown;

use megapipe::{Buffer, Channel, Handle, OpId, Rejected, WriteData};

use crate::output::{Output, Segment};
use crate::service::{Next, Service, Traffic};

/// Bytes of answers after which a write has to confirm that the client reads. No more than
/// [`Output::FULL`]: a full output is always confirmed.
const CONFIRM_BYTES: usize = 64 * 1024;

/// The same in writes; a channel queues a thousand for one handle.
const CONFIRM_WRITES: usize = 256;

/// Input that is taken while answers are under way, before reading stops.
const HELD_MAX: usize = 64 * 1024;

const _: () = assert!(CONFIRM_BYTES <= Output::FULL);

/// A connection of a channel.
pub(crate) struct Connection<Session> {
    handle: Handle,
    session: Session,
    reading: Reading,
    /// Input that waits for the answers before it to be written.
    held: Vec<u8>,
    /// What was written since the last confirmation.
    unconfirmed_bytes: usize,
    unconfirmed_writes: usize,
    /// A write is to confirm that the client reads.
    confirming: bool,
    stage: Stage,
    /// The client will send no more.
    ended: bool,
    /// When the client last sent or read something, as its thread counts.
    pub(crate) used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    On(OpId),
    /// It was cancelled, and may yet bring some bytes.
    Stopping,
    Off,
}

/// How far a connection is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Further input is discarded; answers are still to be queued.
    Draining,
    /// The end of the stream is queued behind the last answer.
    ShuttingDown,
    /// The kernel has taken all answers and the end of the stream.
    ShutDown,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Fate {
    Open,
    /// To be closed, when what is queued has been written.
    Close,
}

/// What a connection works with.
pub(crate) struct Context<'a, S> {
    pub(crate) channel: &'a mut Channel,
    pub(crate) service: &'a S,
    pub(crate) thread: usize,
    /// Empty between two calls.
    pub(crate) output: &'a mut Output,
}

impl<Session> Connection<Session> {
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether the kernel has taken everything that the client is to get.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.stage == Stage::ShutDown
    }
}

impl<Session: Default> Connection<Session> {
    pub(crate) fn new(handle: Handle, now: u64) -> Self {
        Self {
            handle,
            session: Session::default(),
            reading: Reading::Off,
            held: Vec::new(),
            unconfirmed_bytes: 0,
            unconfirmed_writes: 0,
            confirming: false,
            stage: Stage::Serving,
            ended: false,
            used: now,
        }
    }

    /// Reads on, unless it does or the client has ended.
    pub(crate) fn start_reading(&mut self, channel: &mut Channel) -> Fate {
        if self.reading != Reading::Off || self.ended {
            return Fate::Open;
        }
        match channel.read_stream(self.handle) {
            Ok(op) => {
                self.reading = Reading::On(op);
                Fate::Open
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read from a client");
                Fate::Close
            }
        }
    }

    /// Input came, and the read goes on.
    pub(crate) fn received<S>(&mut self, input: &[u8], context: &mut Context<'_, S>) -> Fate
    where
        S: Service<Session = Session>,
    {
        context.service.count(context.thread, Traffic::Read(input.len()));
        // A cancelled read brings the rest of what came before the drain.
        if self.stage != Stage::Serving && self.reading != Reading::Stopping {
            return Fate::Open;
        }
        if !self.confirming {
            return self.answer(input, context);
        }
        self.held.extend_from_slice(input);
        if let Reading::On(read) = self.reading
            && self.held.len() >= HELD_MAX
            && context.channel.cancel(read).is_ok()
        {
            self.reading = Reading::Stopping;
        }
        Fate::Open
    }

    /// The client sends no more; what it has sent is answered.
    pub(crate) fn input_ended(&mut self, channel: &mut Channel) -> Fate {
        self.reading = Reading::Off;
        self.ended = true;
        match self.stage {
            Stage::Serving if self.confirming => Fate::Open,
            Stage::Draining => self.finish(channel),
            Stage::ShuttingDown => Fate::Open,
            Stage::Serving | Stage::ShutDown => Fate::Close,
        }
    }

    /// The read ended before the input did.
    pub(crate) fn reading_stopped(&mut self, channel: &mut Channel) -> Fate {
        self.reading = Reading::Off;
        match self.stage {
            Stage::Serving if self.confirming => Fate::Open,
            Stage::Draining => self.finish(channel),
            _ => self.start_reading(channel),
        }
    }

    /// The client has read enough to go on.
    pub(crate) fn confirmed<S>(&mut self, context: &mut Context<'_, S>) -> Fate
    where
        S: Service<Session = Session>,
    {
        self.confirming = false;
        self.unconfirmed_bytes = 0;
        self.unconfirmed_writes = 0;
        if self.answer(&[], context) == Fate::Close {
            return Fate::Close;
        }
        if self.confirming {
            return Fate::Open;
        }
        match self.stage {
            Stage::Draining => self.finish(context.channel),
            Stage::Serving if self.ended => Fate::Close,
            _ => self.start_reading(context.channel),
        }
    }

    /// Answers only what has been received, then ends.
    pub(crate) fn drain(&mut self, channel: &mut Channel) -> Fate {
        self.stage = Stage::Draining;
        self.finish(channel)
    }

    /// The kernel has taken the last answer and the end of the stream.
    pub(crate) fn shut_down(&mut self) -> Fate {
        self.stage = Stage::ShutDown;
        if self.ended { Fate::Close } else { Fate::Open }
    }

    /// Ends the stream behind the last answer, once that is queued.
    fn finish(&mut self, channel: &mut Channel) -> Fate {
        if self.confirming || self.reading == Reading::Stopping {
            return Fate::Open;
        }
        if let Err(error) = channel.shutdown(self.handle, Shutdown::Write) {
            tracing::debug!(%error, "cannot end the stream to a client");
            return Fate::Close;
        }
        self.stage = Stage::ShuttingDown;
        self.start_reading(channel)
    }

    /// Gives the session what is held and `input`, and writes what it answers.
    fn answer<S>(&mut self, input: &[u8], context: &mut Context<'_, S>) -> Fate
    where
        S: Service<Session = Session>,
    {
        let Context { service, thread, output, .. } = context;
        let next = if self.held.is_empty() {
            let progress = service.receive(*thread, &mut self.session, input, output);
            self.held.extend_from_slice(&input[progress.consumed..]);
            progress.next
        } else {
            self.held.extend_from_slice(input);
            let progress = service.receive(*thread, &mut self.session, &self.held, output);
            self.held.drain(..progress.consumed);
            if self.held.is_empty() {
                self.held = Vec::new();
            }
            progress.next
        };
        let written = self.write(context.channel, context.output);
        context.service.count(context.thread, Traffic::Written(context.output.len()));
        context.output.clear();
        match written {
            Ok(()) if next == Next::Close && self.stage == Stage::Serving => Fate::Close,
            Ok(()) => Fate::Open,
            Err(error) => {
                tracing::debug!(%error, "a client cannot be answered");
                Fate::Close
            }
        }
    }

    /// Queues the output for writing, confirmed if it is time.
    fn write(&mut self, channel: &mut Channel, output: &Output) -> Result<(), Rejected<WriteData>> {
        let mut last: Option<WriteData> = None;
        for segment in output.segments() {
            let data = match segment {
                Segment::Copied(text) => copied(channel, text),
                Segment::Shared(value) => value.clone().into(),
            };
            if let Some(data) = last.replace(data) {
                channel.write_quiet(self.handle, data)?;
                self.unconfirmed_writes += 1;
            }
        }
        let Some(data) = last else {
            return Ok(());
        };
        self.unconfirmed_bytes += output.len();
        self.unconfirmed_writes += 1;
        let due = self.unconfirmed_bytes >= CONFIRM_BYTES || self.unconfirmed_writes >= CONFIRM_WRITES;
        if due && !self.confirming {
            channel.write(self.handle, data)?;
            self.confirming = true;
        } else {
            channel.write_quiet(self.handle, data)?;
        }
        Ok(())
    }
}

/// The text in memory that the write may keep: of the channel's pool if it fits.
pub(crate) fn copied(channel: &mut Channel, text: &[u8]) -> WriteData {
    match channel.buffer() {
        Ok(mut buffer) if text.len() <= Buffer::remaining(&buffer) => {
            buffer.extend_from_slice(text);
            buffer.into()
        }
        // Too long, or the pool is dry.
        _ => text.to_vec().into(),
    }
}
