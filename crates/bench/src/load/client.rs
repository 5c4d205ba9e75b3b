//! The connections of a thread and their requests, whatever carries them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::Duration;

use super::request::{Answer, Arrived};
use super::{CHECK_INTERVAL, Connections, LoadError, Meter, Options, Outcome, Schedule};

/// What carries requests.
pub(super) trait Wire {
    /// Connects, and sends the first request, or will once the connection is there.
    fn open(&mut self, index: usize) -> io::Result<()>;

    /// Sends a request, or will send what finds no room.
    fn send(&mut self, index: usize) -> io::Result<()>;

    /// Ends the connection.
    fn close(&mut self, index: usize) -> io::Result<()>;
}

/// A thread's connections, what they wait for, and what is due on them.
pub(super) struct Client<'load> {
    pub(super) options: &'load Options,
    answer: Answer,
    schedule: Schedule,
    meter: Meter,
    connections: Vec<Connection>,
    /// Those without a request, the one that has rested longest first.
    resting: VecDeque<usize>,
}

#[derive(Clone)]
struct Connection {
    /// Requests left on it; none while it is closed.
    left: u32,
    /// From when the latency of the request counts that is under way.
    since: Option<u64>,
    /// Bytes of the answer so far.
    received: usize,
}

impl<'load> Client<'load> {
    pub(super) fn new(
        options: &'load Options,
        numbers: &Range<usize>,
        meter: Meter,
    ) -> Result<Self, LoadError> {
        let left = if options.lifetime == Connections::Kept { u32::MAX } else { 0 };
        let end = meter.end().map_or(u64::MAX, |(end, _)| end);
        Ok(Self {
            options,
            answer: options.request.answer(&options.target)?,
            schedule: Schedule::new((options.connections, options.active), options.rate, numbers, end),
            meter,
            connections: vec![Connection { left, since: None, received: 0 }; numbers.len()],
            resting: (0..numbers.len()).collect(),
        })
    }

    /// How many connections there are.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Waits for the start of the load, and begins it.
    pub(super) fn start(&mut self, wire: &mut impl Wire) -> Result<(), LoadError> {
        self.meter.start();
        self.turn(wire, true)
    }

    /// Whether the load was stopped, or has ended by itself.
    pub(super) fn is_over(&self) -> bool {
        let by_itself = |(end, last)| {
            let now = self.meter.now();
            now >= end && (now >= last || self.resting.len() == self.connections.len())
        };
        self.meter.is_stopped() || self.meter.end().is_some_and(by_itself)
    }

    pub(super) fn is_paced(&self) -> bool {
        self.schedule.is_open()
    }

    /// How long the thread may wait in the kernel for its next event: not at all where it is to spin, and
    /// where something is due that has a connection.
    pub(super) fn wait(&self) -> Duration {
        match self.is_paced() {
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
    pub(super) fn turn(&mut self, wire: &mut impl Wire, mut worked: bool) -> Result<(), LoadError> {
        if !self.resting.is_empty() {
            let now = self.meter.now();
            for _ in 0..self.resting.len() {
                if !self.begin(wire, now, 0)? {
                    break;
                }
                worked = true;
            }
        }
        if self.options.spin && self.is_paced() {
            self.meter.turn(worked);
        }
        Ok(())
    }

    /// Begins a request on the connection that has rested longest, if one is due; whether there was any. It is late by
    /// the client's fault if more connections than `engaged` were free.
    #[inline]
    fn begin(&mut self, wire: &mut impl Wire, now: u64, engaged: usize) -> Result<bool, LoadError> {
        let Some(&index) = self.resting.front() else { return Ok(false) };
        let Some(since) = self.schedule.next(now) else { return Ok(false) };
        if self.is_paced() && self.resting.len() > engaged {
            self.meter.late(since, now);
        }
        self.resting.pop_front();
        self.connections[index].since = Some(since);
        self.ask(wire, index).map(|()| true)
    }

    /// Sends the connection's request, on a new connection if the last one is over.
    #[inline]
    fn ask(&mut self, wire: &mut impl Wire, index: usize) -> Result<(), LoadError> {
        loop {
            let connection = &mut self.connections[index];
            connection.received = 0;
            let asked = match connection.left {
                0 => {
                    connection.left = match self.options.lifetime {
                        Connections::Reset(requests) => requests,
                        Connections::Short => 1,
                        Connections::Kept => u32::MAX,
                    };
                    wire.open(index)
                }
                _ => wire.send(index),
            };
            let Err(error) = asked else { return Ok(()) };
            if !self.bear(wire, index, error)? {
                return Ok(());
            }
        }
    }

    /// `count` bytes have come on a connection, of which `bytes` can be read. Whether more are expected of it.
    #[inline]
    pub(super) fn received(
        &mut self,
        wire: &mut impl Wire,
        index: usize,
        count: usize,
        bytes: &[u8],
    ) -> Result<bool, LoadError> {
        let connection = &mut self.connections[index];
        let arrived = match connection.since {
            Some(_) => self.answer.check(connection.received, count, bytes),
            None => Arrived::Wrong,
        };
        connection.received += count;
        match arrived {
            Arrived::Part => Ok(true),
            Arrived::Whole if self.answer.closes => Ok(true),
            Arrived::Whole => self.answered(wire, index).map(|()| false),
            Arrived::Wrong => self.failed(wire, index, io::ErrorKind::InvalidData.into()).map(|()| false),
        }
    }

    /// A connection that is not closed here has ended.
    pub(super) fn ended(&mut self, wire: &mut impl Wire, index: usize) -> Result<(), LoadError> {
        let connection = &self.connections[index];
        let whole = self.answer.closes
            && connection.since.is_some()
            && self.answer.check(connection.received, 0, &[]) == Arrived::Whole;
        match whole {
            true => self.answered(wire, index),
            false => self.failed(wire, index, io::ErrorKind::UnexpectedEof.into()),
        }
    }

    #[inline]
    fn answered(&mut self, wire: &mut impl Wire, index: usize) -> Result<(), LoadError> {
        let now = self.meter.now();
        let connection = &mut self.connections[index];
        let since = connection.since.unwrap_or(now);
        // A closed loop has no time at which a request is due, only one of its answer.
        self.meter.transaction(since, now, if self.schedule.is_open() { since } else { now });
        if self.options.lifetime != Connections::Kept {
            connection.left -= 1;
            if connection.left == 0 {
                wire.close(index).map_err(LoadError::Client)?;
            }
        }
        self.rest(index);
        // New connections begin together at the end of a turn: servers accept several for one wake-up.
        if self.options.lifetime == Connections::Short { Ok(()) } else { self.follow(wire, now) }
    }

    /// Counts a failed connection. Its request, if it has one, is made again or given up.
    pub(super) fn failed(
        &mut self,
        wire: &mut impl Wire,
        index: usize,
        error: io::Error,
    ) -> Result<(), LoadError> {
        let busy = self.connections[index].since.is_some();
        match self.bear(wire, index, error)? {
            true => self.ask(wire, index),
            false if busy => self.follow(wire, self.meter.now()),
            false => Ok(()), // its next request will find it closed
        }
    }

    /// Counts a failed connection, and closes it; whether its request is to be made again.
    fn bear(&mut self, wire: &mut impl Wire, index: usize, error: io::Error) -> Result<bool, LoadError> {
        self.meter.failure(error, self.options.lifetime)?;
        self.connections[index].left = 0;
        wire.close(index).map_err(LoadError::Client)?;
        let busy = self.connections[index].since.is_some();
        let again = busy && matches!(self.options.lifetime, Connections::Reset(_));
        if busy && !again {
            self.rest(index);
        }
        Ok(again)
    }

    #[inline]
    fn rest(&mut self, index: usize) {
        self.connections[index].since = None;
        self.resting.push_back(index);
        self.schedule.ended();
    }

    /// A request has ended, on a connection that is free by that: begins the next, if one is due.
    #[inline]
    fn follow(&mut self, wire: &mut impl Wire, now: u64) -> Result<(), LoadError> {
        self.begin(wire, now, 1).map(drop)
    }

    /// Whether a connection is open, as far as this side has done with it.
    pub(super) fn is_open(&self, index: usize) -> bool {
        self.connections[index].left > 0
    }

    /// What was recorded, with what is due and has no answer.
    pub(super) fn finish(mut self) -> Outcome {
        let now = self.meter.now();
        let unfinished = self.connections.iter().filter_map(|connection| connection.since);
        let count = unfinished.clone().count();
        if self.is_paced() {
            let waiting = std::iter::from_fn(|| self.schedule.next(now));
            unfinished.chain(waiting).for_each(|since| self.meter.unanswered(since, now));
        }
        self.meter.finish(count)
    }
}
