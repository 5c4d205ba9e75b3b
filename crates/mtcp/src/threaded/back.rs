//! The stack's side: does jobs, moves packets, and reports what happens to the program's sockets.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use packet::group::Queue;
use tcp::Time;
use tcp::sockets::{Bits, Errno as Error, Notice, Options, Readiness, Set, Socket, Trigger};

use super::message::{Call, Chunk, Event, Job, Kind, Spare};
use super::ring::{Consumer, Producer};
use super::sleep::{Sleeper, Waker};
use super::{ACCEPTS_MAX, CHUNKS_MAX, RESERVED};
use crate::carrier::Waiter;
use crate::signal::Interrupt;
use crate::stack::{LINGER, Stack};

/// Sockets that are asked for at once what happened to them.
const NOTICES: usize = 64;

/// Places that one step on a socket needs, and those that it may not use.
const STEP: usize = 2 + RESERVED;

/// How long a device that does not work is left alone.
const BROKEN_WAIT: Duration = Duration::from_millis(100);

pub(super) struct Back {
    stack: Stack,
    jobs: Consumer<Job>,
    events: Producer<Event>,
    /// This thread, and what ends its sleep where it does not wait for packets.
    sleeper: Sleeper,
    own: Waiter,
    /// The program's threads, and what ends their sleep.
    waker: Waker,
    program: &'static Interrupt,
    /// Reports, by edge, to which sockets something happened.
    set: Set,
    notices: Vec<Notice>,
    /// By socket.
    records: Vec<Option<Record>>,
    /// Sockets to check.
    due: VecDeque<Socket>,
    /// Listeners with connections for which no socket was free.
    stalled: Vec<Socket>,
    spare: Spare,
    /// Waits for a result.
    caller: Option<Thread>,
    /// Something was reported that the program may be waiting for.
    is_loud: bool,
    broken: bool,
    /// When this round began.
    now: Time,
    /// The program's threads run on this CPU, too.
    shares_cpu: bool,
    /// Since when the context is being destroyed: nothing is reported any more.
    ending: Option<Instant>,
}

/// A socket of which the program wants to know what happens.
struct Record {
    kind: Kind,
    queued: bool,
    opening: bool,
    /// The program has closed it: what was written is still to be sent.
    closing: bool,
    /// The failure was reported.
    failed: bool,
    /// The end was reported.
    ended: bool,
    /// The program wants to know when `written` is empty.
    full: bool,
    /// Connections, or chunks of bytes, that the program has.
    lent: usize,
    /// Written by the program, and not yet with the TCP.
    written: VecDeque<Chunk>,
}

impl Back {
    pub(super) fn new(
        mut stack: Stack,
        jobs: Consumer<Job>,
        events: Producer<Event>,
        (sleeper, own): (Sleeper, &'static Interrupt),
        (waker, program): (Waker, &'static Interrupt),
        shares_cpu: bool,
    ) -> Back {
        let set = stack.sockets.create_set(Bits::Together);
        Back {
            stack,
            jobs,
            events,
            sleeper,
            own: Waiter::Thread(own),
            waker,
            program,
            set,
            notices: vec![Notice::default(); NOTICES],
            records: Vec::new(),
            due: VecDeque::new(),
            stalled: Vec::new(),
            spare: Spare::new(),
            caller: None,
            is_loud: false,
            broken: false,
            now: Time::default(),
            shares_cpu,
            ending: None,
        }
    }

    /// What the thread does. Returns the queue of the TUN device.
    pub(super) fn main(mut self) -> Option<Queue> {
        match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(begin) => self.stack.drain(begin),
            // Its tables may be torn, and are not used any more.
            Err(_) => self.refuse(),
        }
        self.stack.into_queue()
    }

    /// Serves the program until it destroys the context. Returns when that was.
    fn serve(&mut self) -> Instant {
        let mut packets = true;
        loop {
            self.now = self.stack.now();
            self.do_jobs();
            if self.stack.is_there() {
                self.move_packets(packets);
                self.check();
            }
            if let Some(begin) = self.ending
                && (begin.elapsed() >= LINGER || !self.stack.is_there() || self.is_sent())
            {
                return begin;
            }
            if self.publish() && self.shares_cpu {
                // The program answers now, and what it writes goes out with the acknowledgement.
                thread::yield_now();
            }
            packets = self.sleep();
        }
    }

    fn do_jobs(&mut self) {
        while let Some(job) = self.jobs.pop() {
            match job {
                Job::Run(call) => self.run(*call),
                Job::Watch(socket, kind) => self.watch(socket, kind),
                Job::Write(socket, chunk) => match self.record(socket) {
                    Some(record) => {
                        record.written.push_back(chunk);
                        self.queue(socket);
                    }
                    None => self.report(Event::Written(socket, chunk)),
                },
                Job::Full(socket) => {
                    if let Some(record) = self.record(socket) {
                        record.full = true;
                        self.queue(socket);
                    }
                }
                Job::Read(socket, chunk) => {
                    self.spare.keep(chunk);
                    self.returned(socket);
                }
                Job::Took(listener) => self.returned(listener),
                Job::Unread(chunk) => self.spare.keep(chunk),
                Job::Close(socket) => self.close(socket),
                Job::Abort(socket) => self.abort(socket),
                Job::End => self.begin_to_end(),
            }
        }
        self.jobs.release();
    }

    fn run(&mut self, call: Call) {
        // It is woken also if this panics.
        self.caller = Some(call.caller);
        let done = (call.work)(&mut self.stack);
        self.report(Event::Done(done));
    }

    /// Reports what happens to a socket, what has happened already first.
    fn watch(&mut self, socket: Socket, kind: Kind) {
        let place = socket.0 as usize;
        if self.records.len() <= place {
            self.records.resize_with(place + 1, || None);
        }
        self.records[place] = Some(Record {
            kind,
            queued: false,
            opening: true,
            closing: false,
            failed: false,
            ended: false,
            full: false,
            lent: 0,
            written: VecDeque::new(),
        });
        // A socket that is there is in no set of its own yet.
        let _ = self.stack.sockets.add(self.set, socket, Readiness::ALL, Trigger::Edge, socket.0.into());
    }

    /// The program has given back a chunk, or taken a connection.
    fn returned(&mut self, socket: Socket) {
        let Some(record) = self.record(socket) else { return };
        let was_at_limit = record.lent == record.most_lent();
        record.lent = record.lent.saturating_sub(1);
        if was_at_limit {
            self.queue(socket);
        }
    }

    fn close(&mut self, socket: Socket) {
        match self.record(socket) {
            // Bytes are on their way to a program that reads them no more.
            Some(Record { kind: Kind::Connection, lent: 1.., .. }) => self.abort(socket),
            Some(record) if !record.written.is_empty() => {
                record.closing = true;
                self.queue(socket);
            }
            _ => self.forget(socket),
        }
    }

    fn abort(&mut self, socket: Socket) {
        // A socket that is no connection is closed by `forget`.
        let _ = self.stack.abort(socket);
        self.forget(socket);
    }

    /// Closes a socket whose bytes are with the TCP.
    fn forget(&mut self, socket: Socket) {
        let _ = self.stack.sockets.close(self.now, socket);
        if let Some(record) = self.records.get_mut(socket.0 as usize).and_then(Option::take) {
            record.written.into_iter().for_each(|chunk| self.spare.keep(chunk));
        }
        while let Some(listener) = self.stalled.pop() {
            self.queue(listener);
        }
    }

    fn begin_to_end(&mut self) {
        self.ending = Some(Instant::now());
        for place in 0..self.records.len() {
            let socket = Socket(place as u32);
            let Some(record) = self.record(socket) else { continue };
            if record.kind == Kind::Connection && record.lent > 0 {
                // As a program that closes with bytes unread.
                let options = self.stack.sockets.options(socket).unwrap_or_default();
                let at_once = Options { linger: Some(Duration::ZERO), ..options };
                let _ = self.stack.sockets.set_options(self.now, socket, at_once);
            }
            self.queue(socket);
        }
    }

    fn move_packets(&mut self, packets: bool) {
        let moved = match packets {
            true => self.stack.turn(),
            false => {
                self.stack.advance(self.now);
                Ok(())
            }
        };
        self.broken = moved.is_err();
        if let Err(error) = moved
            && self.events.has_room(STEP)
        {
            self.report_loudly(Event::Broken(error));
        }
    }

    /// Checks the sockets to which something happened, as long as there is room to report it.
    fn check(&mut self) {
        loop {
            let mut notices = std::mem::take(&mut self.notices);
            let count = self.stack.sockets.wait(self.set, &mut notices).unwrap_or(0);
            notices[..count].iter().for_each(|notice| self.queue(Socket(notice.data as u32)));
            self.notices = notices;
            if count < NOTICES {
                break;
            }
        }
        for _ in 0..self.due.len() {
            let Some(socket) = self.due.pop_front() else { break };
            let Some(record) = self.record(socket) else { continue };
            record.queued = false;
            let is_done = match record.kind {
                Kind::Listener => self.accept(socket),
                Kind::Connection => self.serve_connection(socket),
            };
            if !is_done {
                // Of returned chunks alone the program is not woken, and their places are needed.
                self.is_loud = true;
                self.queue(socket);
                break;
            }
        }
    }

    /// Offers connections to the program. Returns whether there was room to report all.
    fn accept(&mut self, listener: Socket) -> bool {
        while self.ending.is_none() && self.record(listener).is_some_and(|record| record.lent < ACCEPTS_MAX) {
            if !self.has_room() {
                return false;
            }
            let socket = match self.stack.sockets.accept(self.now, listener) {
                Ok(socket) => socket,
                Err(Error::TooMany) => {
                    self.stalled.push(listener);
                    break;
                }
                Err(_) => break,
            };
            let peer = self.stack.sockets.peer_address(socket).ok();
            self.watch(socket, Kind::Connection);
            if let Some(record) = self.record(socket) {
                record.opening = false;
            }
            if let Some(record) = self.record(listener) {
                record.lent += 1;
            }
            self.report_loudly(Event::Accepted { listener, socket, peer });
            // Its request may be there already.
            self.queue(socket);
        }
        true
    }

    /// Moves bytes both ways, and reports what has become of the connection. Returns whether there was room to
    /// report all.
    fn serve_connection(&mut self, socket: Socket) -> bool {
        let Ok(ready) = self.stack.sockets.readiness(socket) else { return true };
        if ready.is_none() {
            return true;
        }
        if !self.has_room() {
            return false;
        }
        if ready.has(Readiness::ERROR)
            && let Ok(Some(error)) = self.stack.sockets.take_error(socket)
        {
            self.fail(socket, error);
        }
        if let Some(record) = self.record(socket)
            && std::mem::take(&mut record.opening)
            && !record.failed
        {
            self.report_loudly(Event::Connected(socket));
        }
        if !self.send(socket) {
            return false;
        }
        let Some(record) = self.record(socket) else { return true };
        if record.closing {
            if record.written.is_empty() {
                self.forget(socket);
            }
            return true;
        }
        // What nobody reads any more resets the connection.
        self.ending.is_some() || !ready.has(Readiness::READABLE) || self.receive(socket)
    }

    /// Gives the TCP what the program has written. Returns whether there was room to report it.
    fn send(&mut self, socket: Socket) -> bool {
        loop {
            if !self.has_room() {
                return false;
            }
            let Some(record) = self.records.get_mut(socket.0 as usize).and_then(Option::as_mut) else {
                return true;
            };
            let Some(chunk) = record.written.front_mut() else { break };
            let sent = self.stack.sockets.write(self.now, socket, chunk.unread());
            match sent {
                Ok(len) => chunk.consume(len),
                Err(Error::WouldBlock) => return true,
                // Nobody gets it.
                Err(_) => chunk.consume(chunk.unread().len()),
            }
            if chunk.unread().is_empty()
                && let Some(chunk) = record.written.pop_front()
            {
                self.report(Event::Written(socket, chunk));
            }
            // Of a stream that ended before, the program knows.
            if let Err(error) = sent
                && error != Error::Pipe
            {
                self.fail(socket, error);
            }
        }
        if let Some(record) = self.record(socket)
            && std::mem::take(&mut record.full)
        {
            self.report_loudly(Event::Room(socket));
        }
        true
    }

    /// Gives the program what has arrived. Returns whether there was room to report it.
    fn receive(&mut self, socket: Socket) -> bool {
        while self.record(socket).is_some_and(|record| record.lent < CHUNKS_MAX && !record.ended) {
            if !self.has_room() {
                return false;
            }
            let mut chunk = self.spare.take();
            match self.stack.sockets.read(self.now, socket, chunk.room()) {
                Ok(0) => {
                    self.spare.keep(chunk);
                    if let Some(record) = self.record(socket) {
                        record.ended = true;
                    }
                    self.report_loudly(Event::End(socket));
                }
                Ok(len) => {
                    chunk.set_len(len);
                    if let Some(record) = self.record(socket) {
                        record.lent += 1;
                        chunk.set_wanted(record.lent >= CHUNKS_MAX / 2);
                    }
                    self.report_loudly(Event::Data(socket, chunk));
                }
                Err(error) => {
                    self.spare.keep(chunk);
                    if error == Error::WouldBlock {
                        break;
                    }
                    self.fail(socket, error);
                }
            }
        }
        true
    }

    fn fail(&mut self, socket: Socket, error: Error) {
        if let Some(record) = self.record(socket)
            && !std::mem::replace(&mut record.failed, true)
        {
            self.report_loudly(Event::Failed(socket, error));
        }
    }

    /// Whether there is room for what one step on a socket reports.
    fn has_room(&mut self) -> bool {
        self.ending.is_some() || self.events.has_room(STEP)
    }

    fn report_loudly(&mut self, event: Event) {
        self.is_loud = true;
        self.report(event);
    }

    /// There is room: each step sees to that.
    fn report(&mut self, event: Event) {
        if self.ending.is_none() {
            let _ = self.events.push(event);
        }
    }

    /// Lets the program have what was reported, and wakes it if it waits for that. Returns whether it did.
    fn publish(&mut self) -> bool {
        self.events.publish();
        if let Some(caller) = self.caller.take() {
            caller.unpark();
        }
        let must_wake = std::mem::take(&mut self.is_loud) && self.waker.must_wake();
        if must_wake {
            self.program.wake();
        }
        must_wake
    }

    /// Sleeps until there is something to do. Returns whether packets may have arrived.
    fn sleep(&mut self) -> bool {
        let (waiter, timeout) = match self.stack.is_there() {
            true if self.broken => (self.own.clone(), Some(BROKEN_WAIT)),
            true => {
                let limit = self.ending.map(|begin| LINGER.saturating_sub(begin.elapsed()));
                let timeout = self.stack.before_sleep(limit);
                (self.stack.waiter(), timeout)
            }
            false => (self.own.clone(), None),
        };
        self.sleeper.announce();
        let has_work = !self.jobs.is_empty() || (!self.due.is_empty() && self.has_room());
        if has_work {
            self.sleeper.end();
            return true;
        }
        let packets = waiter.wait(timeout);
        self.sleeper.end();
        self.broken || packets.unwrap_or(true) || timeout.is_some_and(|timeout| timeout.is_zero())
    }

    /// After a panic: refuses what the program wants, until it destroys the context.
    fn refuse(&mut self) {
        let _ = self.events.push(Event::Torn);
        loop {
            self.is_loud = true;
            self.publish();
            while let Some(job) = self.jobs.pop() {
                match job {
                    Job::Run(call) => call.caller.unpark(),
                    Job::End => return,
                    _ => {}
                }
            }
            self.jobs.release();
            self.sleeper.announce();
            if self.jobs.is_empty() {
                let _ = self.own.wait(None);
            }
            self.sleeper.end();
        }
    }

    /// Whether all that was written is with the TCP.
    fn is_sent(&self) -> bool {
        self.records.iter().flatten().all(|record| record.written.is_empty())
    }

    fn queue(&mut self, socket: Socket) {
        if let Some(record) = self.record(socket)
            && !std::mem::replace(&mut record.queued, true)
        {
            self.due.push_back(socket);
        }
    }

    fn record(&mut self, socket: Socket) -> Option<&mut Record> {
        self.records.get_mut(socket.0 as usize).and_then(Option::as_mut)
    }
}

impl Record {
    fn most_lent(&self) -> usize {
        match self.kind {
            Kind::Listener => ACCEPTS_MAX,
            Kind::Connection => CHUNKS_MAX,
        }
    }
}
