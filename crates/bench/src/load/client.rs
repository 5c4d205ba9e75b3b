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
    fn open(&mut self, index: usize, request: &[u8]) -> io::Result<()>;

    /// Sends a request, or will send what finds no room.
    fn send(&mut self, index: usize, request: &[u8]) -> io::Result<()>;

    /// Ends the connection.
    fn close(&mut self, index: usize) -> io::Result<()>;
}

/// A thread's connections, what they wait for, and what is due on them.
pub(super) struct Client<'load> {
    pub(super) options: &'load Options,
    pub(super) request: Vec<u8>,
    instead: Option<(u64, Vec<u8>)>,
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
    /// Whether a request is under way, and whether it is the one that is asked instead.
    busy: bool,
    instead: bool,
    /// Bytes of the answer so far.
    received: usize,
    /// From when the request's latency counts.
    since: u64,
}

impl<'load> Client<'load> {
    pub(super) fn new(
        options: &'load Options,
        numbers: &Range<usize>,
        meter: Meter,
    ) -> Result<Self, LoadError> {
        let answer = options.request.answer(&options.target)?;
        let left = if options.lifetime == Connections::Kept { u32::MAX } else { 0 };
        let connection = Connection { left, busy: false, instead: false, received: 0, since: 0 };
        Ok(Self {
            options,
            request: options.request.bytes(),
            instead: options.instead.map(|(every, request)| (every, request.bytes())),
            answer,
            schedule: Schedule::new(
                (options.connections, options.active),
                options.rate,
                numbers,
                meter.end().map_or(u64::MAX, |(end, _)| end),
            ),
            meter,
            connections: vec![connection; numbers.len()],
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
        self.begin_due(wire, self.meter.now()).map(drop)
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

    /// Ends a turn of the thread's loop, in which something was received or not: begins what has become due.
    pub(super) fn turn(&mut self, wire: &mut impl Wire, worked: bool) -> Result<(), LoadError> {
        let begun = match self.resting.is_empty() {
            true => false,
            false => self.begin_due(wire, self.meter.now())?,
        };
        if self.options.spin && self.is_paced() {
            self.meter.turn(worked || begun);
        }
        Ok(())
    }

    /// Begins all that is due and has a connection, each of which is tried once; whether there was any.
    fn begin_due(&mut self, wire: &mut impl Wire, now: u64) -> Result<bool, LoadError> {
        let begun = self.schedule.begun();
        for _ in 0..self.resting.len() {
            let Some(since) = self.schedule.next(now) else { break };
            if self.is_paced() {
                self.meter.late(since, now);
            }
            self.begin(wire, since)?;
        }
        Ok(self.schedule.begun() > begun)
    }

    /// Begins a request on the connection that has rested longest.
    #[inline]
    fn begin(&mut self, wire: &mut impl Wire, since: u64) -> Result<(), LoadError> {
        let Some(index) = self.resting.pop_front() else { return Ok(()) };
        let instead = match &self.instead {
            Some((every, _)) => self.schedule.begun().is_multiple_of(*every),
            None => false,
        };
        let connection = &mut self.connections[index];
        (connection.busy, connection.instead, connection.since) = (true, instead, since);
        self.ask(wire, index)
    }

    /// Sends the connection's request, on a new connection if the last one is over.
    #[inline]
    fn ask(&mut self, wire: &mut impl Wire, index: usize) -> Result<(), LoadError> {
        loop {
            let connection = &mut self.connections[index];
            connection.received = 0;
            let request = match &self.instead {
                Some((_, request)) if connection.instead => request,
                _ => &self.request,
            };
            let asked = match connection.left {
                0 => {
                    connection.left = match self.options.lifetime {
                        Connections::Reset(requests) => requests,
                        Connections::Short => 1,
                        Connections::Kept => u32::MAX,
                    };
                    wire.open(index, request)
                }
                _ => wire.send(index, request),
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
        let arrived = match connection.busy {
            true => self.answer.check(connection.received, count, bytes),
            false => Arrived::Wrong,
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
            && connection.busy
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
        // A closed loop has no time at which a request is due, only one of its answer.
        let counted = if self.schedule.is_open() { connection.since } else { now };
        self.meter.transaction(connection.since, now, (!connection.instead).then_some(counted));
        if self.options.lifetime != Connections::Kept {
            connection.left -= 1;
            if connection.left == 0 {
                self.meter.connection();
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
        let busy = self.connections[index].busy;
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
        let lasts = matches!(self.options.lifetime, Connections::Reset(_));
        let again = self.connections[index].busy && lasts;
        if self.connections[index].busy && !again {
            self.rest(index);
        }
        Ok(again)
    }

    #[inline]
    fn rest(&mut self, index: usize) {
        self.connections[index].busy = false;
        self.resting.push_back(index);
        self.schedule.ended();
    }

    /// A request has ended: begins the next, if one is due. It is late by the server's fault, unless another
    /// connection was free.
    #[inline]
    fn follow(&mut self, wire: &mut impl Wire, now: u64) -> Result<(), LoadError> {
        let Some(since) = self.schedule.next(now) else { return Ok(()) };
        if self.is_paced() && self.resting.len() > 1 {
            self.meter.late(since, now);
        }
        self.begin(wire, since)
    }

    /// Whether a connection is open, as far as this side has done with it.
    pub(super) fn is_open(&self, index: usize) -> bool {
        self.connections[index].left > 0
    }

    /// What was recorded, with what is due and has no answer.
    pub(super) fn finish(mut self) -> Outcome {
        let now = self.meter.now();
        let unfinished = self.connections.iter().filter(|connection| connection.busy).count();
        if self.is_paced() {
            for connection in self.connections.iter().filter(|connection| connection.busy) {
                if !connection.instead {
                    self.meter.unanswered(connection.since, now);
                }
            }
            while let Some(since) = self.schedule.next(now) {
                self.meter.unanswered(since, now);
            }
        }
        self.meter.finish(unfinished)
    }
}
