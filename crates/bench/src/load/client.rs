//! The connections of a thread and their requests, whatever carries them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::Duration;

use super::request::Answer;
use super::{CHECK_INTERVAL, Connections, LoadError, Meter, Options, Outcome, Schedule};

/// What carries requests.
pub(super) trait Wire: Sized {
    /// For so many connections.
    fn new(options: &Options, connections: usize) -> io::Result<Self>;

    /// Connects, and sends the first request, or will once the connection is there.
    fn open(&mut self, index: usize) -> io::Result<()>;

    /// Sends a request, or will send what finds no room.
    fn send(&mut self, index: usize) -> io::Result<()>;

    /// Ends the connection.
    fn close(&mut self, index: usize) -> io::Result<()>;

    /// Waits so long at most until something happens on connections.
    fn wait(&mut self, time: Duration) -> io::Result<()>;

    /// What has happened on one of them.
    fn next(&mut self) -> io::Result<Option<Arrival>>;

    /// The bytes of the last arrival, where they are read.
    fn bytes(&self) -> &[u8] {
        &[]
    }
}

/// On which connection how many bytes have come, none at its end; or why it failed. It may have been closed meanwhile.
pub(super) type Arrival = (usize, io::Result<usize>);

/// A thread's connections, what they wait for, and what is due on them.
struct Client<'load, W> {
    options: &'load Options,
    answer: Answer,
    schedule: Schedule,
    meter: Meter,
    wire: W,
    connections: Vec<Connection>,
    /// Those without a request, the one that has rested longest first.
    resting: VecDeque<usize>,
}

#[derive(Clone)]
struct Connection {
    /// Requests left on it; none while it is closed.
    left: u64,
    /// From when the latency of the request counts that is under way.
    since: Option<u64>,
    /// Bytes of the answer so far.
    received: usize,
}

/// Makes the load on these of its connections, until it is stopped or over.
pub(super) fn run<W: Wire>(
    options: &Options,
    numbers: &Range<usize>,
    meter: Meter,
) -> Result<Outcome, LoadError> {
    let left = if options.lifetime == Connections::Kept { u64::MAX } else { 0 };
    let answer = options.request.answer(&options.target)?;
    let client = Client {
        options,
        answer,
        schedule: Schedule::new(
            (options.connections, options.active),
            options.rate,
            numbers,
            meter.control.end,
        ),
        meter,
        wire: W::new(options, numbers.len()).map_err(LoadError::Client)?,
        connections: vec![Connection { left, since: None, received: 0 }; numbers.len()],
        resting: (0..numbers.len()).collect(),
    };
    client.run()
}

impl<W: Wire> Client<'_, W> {
    fn run(mut self) -> Result<Outcome, LoadError> {
        self.meter.start();
        let mut worked = true;
        while !self.meter.is_over(self.under_way()) {
            self.turn(worked)?;
            self.wire.wait(self.time_to_wait()).map_err(LoadError::Client)?;
            worked = false;
            while let Some((index, count)) = self.wire.next().map_err(LoadError::Client)? {
                self.arrived(index, count)?;
                worked = true;
            }
        }
        Ok(self.finish())
    }

    fn under_way(&self) -> usize {
        self.connections.len() - self.resting.len()
    }

    /// How long the thread may wait in the kernel for its next event: not at all where it is to spin, and
    /// where something is due that has a connection.
    fn time_to_wait(&self) -> Duration {
        match self.schedule.is_open() {
            true if self.options.spin => Duration::ZERO,
            true if !self.resting.is_empty() => {
                let left = self.schedule.due().saturating_sub(self.meter.now());
                Duration::from_nanos(left).min(CHECK_INTERVAL)
            }
            _ => CHECK_INTERVAL,
        }
    }

    /// Ends a turn of the thread's loop, in which something was received or not: begins all that has become due and
    /// has a connection, each of which is tried once.
    fn turn(&mut self, mut worked: bool) -> Result<(), LoadError> {
        if !self.resting.is_empty() {
            let now = self.meter.now();
            for _ in 0..self.resting.len() {
                if !self.begin(now, 0)? {
                    break;
                }
                worked = true;
            }
        }
        if self.options.spin && self.schedule.is_open() {
            self.meter.turn(worked);
        }
        Ok(())
    }

    /// Begins a request on the connection that has rested longest, if one is due; whether there was any. It is late by
    /// the client's fault if more connections than `engaged` were free.
    #[inline]
    fn begin(&mut self, now: u64, engaged: usize) -> Result<bool, LoadError> {
        let Some(&index) = self.resting.front() else { return Ok(false) };
        let Some(since) = self.schedule.next(now, self.under_way()) else { return Ok(false) };
        if self.schedule.is_open() && self.resting.len() > engaged {
            self.meter.late(since, now);
        }
        self.resting.pop_front();
        self.connections[index].since = Some(since);
        self.ask(index).map(|()| true)
    }

    /// Sends the connection's request, on a new connection if the last one is over.
    #[inline]
    fn ask(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        connection.received = 0;
        let asked = match connection.left {
            0 => {
                connection.left = match self.options.lifetime {
                    Connections::Reset(requests) => requests.into(),
                    Connections::Short => 1,
                    Connections::Kept => u64::MAX,
                };
                self.wire.open(index)
            }
            _ => self.wire.send(index),
        };
        asked.or_else(|error| self.failed(index, error))
    }

    #[inline]
    fn arrived(&mut self, index: usize, count: io::Result<usize>) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        if connection.left == 0 {
            return Ok(()); // the end of a connection that this side has ended
        }
        let count = match count {
            Ok(count) => count,
            Err(error) => return self.failed(index, error),
        };
        let expected = self.answer.start.get(connection.received..).unwrap_or_default();
        let is_right = self.wire.bytes().iter().zip(expected).all(|(one, other)| one == other);
        connection.received += count;
        let is_whole = connection.received == self.answer.length;
        match count {
            0 if is_whole && self.answer.closes => self.answered(index),
            0 => self.failed(index, io::ErrorKind::UnexpectedEof.into()),
            _ if connection.since.is_none() || !is_right || connection.received > self.answer.length => {
                self.failed(index, io::ErrorKind::InvalidData.into())
            }
            _ if is_whole && !self.answer.closes => self.answered(index),
            _ => Ok(()),
        }
    }

    #[inline]
    fn answered(&mut self, index: usize) -> Result<(), LoadError> {
        let now = self.meter.now();
        let connection = &mut self.connections[index];
        let since = connection.since.unwrap_or(now);
        // A closed loop has no time at which a request is due, only one of its answer.
        self.meter.transaction(since, now, if self.schedule.is_open() { since } else { now });
        connection.left -= 1;
        if connection.left == 0 {
            self.wire.close(index).map_err(LoadError::Client)?;
        }
        self.rest(index);
        match self.options.lifetime {
            // New connections begin together at the end of a turn: servers accept several for one wake-up.
            Connections::Short => Ok(()),
            _ => self.begin(now, 1).map(drop),
        }
    }

    /// Counts a failed connection, and closes it. Its request, if it has one, is made again or given up; the next one
    /// on it will find it closed.
    #[cold]
    fn failed(&mut self, index: usize, error: io::Error) -> Result<(), LoadError> {
        self.meter.failure(error, self.options.lifetime)?;
        self.connections[index].left = 0;
        self.wire.close(index).map_err(LoadError::Client)?;
        match (self.connections[index].since, self.options.lifetime) {
            (None, _) => {}
            (_, Connections::Reset(_)) => self.ask(index)?,
            _ => self.rest(index),
        }
        Ok(())
    }

    #[inline]
    fn rest(&mut self, index: usize) {
        self.connections[index].since = None;
        self.resting.push_back(index);
    }

    /// What was recorded, with what is due and has no answer.
    fn finish(mut self) -> Outcome {
        let (now, is_open) = (self.meter.now(), self.schedule.is_open());
        let under_way = self.connections.iter().filter_map(|connection| connection.since);
        // In a closed loop nothing else is due.
        let waiting = std::iter::from_fn(|| self.schedule.next(now, usize::MAX));
        self.meter.finish(under_way.chain(waiting), is_open)
    }
}
