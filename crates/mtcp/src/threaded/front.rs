//! The program's side: answers calls from what events have brought, and posts jobs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use packet::group::Queue;
use tcp::Time;
use tcp::sockets::{Errno as Error, Readiness, Socket};

use super::message::{CHUNK, Call, Chunk, Event, Job, Kind, Outcome, Spare};
use super::ring::{Consumer, Producer};
use super::sleep::{Sleeper, Waker};
use super::{CHUNKS_MAX, PLACES, SENDING_MAX};
use crate::carrier::Waiter;
use crate::errno::{Errno, FORKED, TORN};
use crate::files::{Member, Wake};
use crate::fork;
use crate::signal::Interrupt;
use crate::stack::Stack;

pub(crate) struct Front {
    jobs: Producer<Job>,
    events: Consumer<Event>,
    /// The program's threads, and what ends their sleep.
    sleeper: Sleeper,
    program: &'static Interrupt,
    /// The stack's thread, and what ends its sleep.
    waker: Waker,
    stack: &'static Interrupt,
    thread: JoinHandle<Option<Queue>>,
    /// Of the process that has the thread.
    generation: u32,
    origin: Instant,
    /// By socket.
    entries: Vec<Option<Entry>>,
    spare: Spare,
    /// Events popped since the stack was last woken for the room.
    popped: usize,
    /// Events have come.
    moved: bool,
    /// Why the device does not work, until a call has said so.
    broken: Option<Errno>,
    /// The stack has panicked.
    torn: bool,
}

/// A socket that the program has, or may accept.
struct Entry {
    state: State,
    /// Epoll sets that it is in.
    members: Vec<Member>,
}

enum State {
    New,
    /// Connections that may be accepted, and their peers.
    Listener(VecDeque<(Socket, Option<SocketAddr>)>),
    Connection(Connection),
}

#[derive(Default)]
struct Connection {
    opening: bool,
    /// What has arrived and was not read.
    unread: VecDeque<Chunk>,
    /// Nothing comes after `unread`.
    ended: bool,
    failure: Option<Error>,
    /// The program was given the failure.
    reported: bool,
    /// Bytes and chunks on their way to the TCP.
    sending: (usize, usize),
    /// There was no room to write: the stack reports it.
    full: bool,
}

impl Connection {
    /// The failure, unless the program was given it before.
    fn take_failure(&mut self) -> Option<Error> {
        let failure = self.failure.filter(|_| !self.reported);
        self.reported |= failure.is_some();
        failure
    }

    fn readiness(&self) -> Readiness {
        if self.opening {
            return Readiness::NONE;
        }
        let parts = [
            (Readiness::READABLE, !self.unread.is_empty() || self.ended || self.failure.is_some()),
            (Readiness::WRITABLE, !self.full || self.failure.is_some()),
            (Readiness::READ_HANGUP, self.ended || self.failure.is_some()),
            (Readiness::ERROR, self.failure.is_some() && !self.reported),
        ];
        parts.iter().filter(|(_, is)| *is).fold(Readiness::NONE, |ready, (part, _)| ready.with(*part))
    }
}

impl Front {
    pub(super) fn new(
        jobs: Producer<Job>,
        events: Consumer<Event>,
        (sleeper, program): (Sleeper, &'static Interrupt),
        (waker, stack): (Waker, &'static Interrupt),
        thread: JoinHandle<Option<Queue>>,
    ) -> Front {
        Front {
            jobs,
            events,
            sleeper,
            program,
            waker,
            stack,
            thread,
            generation: fork::generation(),
            origin: Instant::now(),
            entries: Vec::new(),
            spare: Spare::new(),
            popped: 0,
            moved: false,
            broken: None,
            torn: false,
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_micros(self.origin.elapsed().as_micros() as u64)
    }

    pub(crate) fn is_left_behind(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Whether the stack has panicked.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Runs a function in the stack's thread, and waits for what it returns.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Stack) -> Result<T, Errno> + Send + 'static,
        mut wake: impl Wake,
    ) -> Result<T, Errno> {
        self.check()?;
        let work = Box::new(move |stack: &mut Stack| Box::new(work(stack)) as Outcome);
        self.post(Job::Run(Box::new(Call { work, caller: thread::current() })));
        self.commit();
        loop {
            if let Some(done) = self.take(&mut wake) {
                // There is one call at a time: the result is its own.
                return done.downcast().map_or(Err(TORN), |result| *result);
            }
            self.check()?;
            thread::park();
        }
    }

    /// Whether there is a stack.
    fn check(&self) -> Result<(), Errno> {
        match (self.is_left_behind(), self.torn) {
            (true, _) => Err(FORKED),
            (_, true) => Err(TORN),
            _ => Ok(()),
        }
    }

    /// Takes what the stack has reported.
    pub(crate) fn turn(&mut self, mut wake: impl Wake) -> Result<(), Errno> {
        // No call waits for a result now.
        self.take(&mut wake);
        self.check()?;
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Applies events, up to a result of [`run`](Front::run).
    fn take(&mut self, wake: &mut impl Wake) -> Option<Outcome> {
        let mut done = None;
        while done.is_none()
            && let Some(event) = self.events.pop()
        {
            self.popped += 1;
            self.moved = true;
            done = self.apply(event, wake);
        }
        self.events.release();
        // A stack that has found no room sleeps behind more events than that.
        if self.popped >= PLACES / 2 {
            self.popped = 0;
            self.commit();
        }
        done
    }

    fn apply(&mut self, event: Event, wake: &mut impl Wake) -> Option<Outcome> {
        match event {
            Event::Done(result) => return Some(result),
            Event::Torn => self.torn = true,
            Event::Broken(error) => self.broken = Some(error),
            Event::Accepted { listener, socket, peer } => {
                self.insert(socket, State::Connection(Connection::default()));
                match self.entry_mut(listener) {
                    Ok(Entry { state: State::Listener(waiting), members }) => {
                        waiting.push_back((socket, peer));
                        wake(members, Readiness::READABLE);
                    }
                    // It was closed.
                    _ => {
                        let _ = self.abort(socket);
                    }
                }
            }
            Event::Data(socket, chunk) => match self.entry_mut(socket) {
                Ok(Entry { state: State::Connection(connection), members }) => {
                    connection.unread.push_back(chunk);
                    wake(members, Readiness::READABLE);
                }
                _ => self.post(Job::Unread(chunk)),
            },
            Event::Written(socket, chunk) => {
                if let Ok(connection) = self.connection_mut(socket) {
                    let (bytes, chunks) = connection.sending;
                    connection.sending = (bytes - chunk.len(), chunks - 1);
                }
                self.spare.keep(chunk);
            }
            Event::Connected(socket) => {
                self.change(socket, Readiness::WRITABLE, wake, |connection| connection.opening = false);
            }
            Event::Room(socket) => {
                self.change(socket, Readiness::WRITABLE, wake, |connection| connection.full = false);
            }
            Event::End(socket) => {
                let bits = Readiness::READABLE.with(Readiness::READ_HANGUP);
                self.change(socket, bits, wake, |connection| connection.ended = true);
            }
            Event::Failed(socket, error) => self.change(socket, Readiness::ALL, wake, |connection| {
                connection.opening = false;
                connection.failure = Some(error);
            }),
        }
        None
    }

    /// Changes a connection, unless the program has closed it.
    fn change(
        &mut self,
        socket: Socket,
        bits: Readiness,
        wake: &mut impl Wake,
        change: impl FnOnce(&mut Connection),
    ) {
        if let Ok(Entry { state: State::Connection(connection), members }) = self.entry_mut(socket) {
            change(connection);
            wake(members, bits);
        }
    }

    pub(crate) fn before_sleep(&mut self, limit: Option<Duration>) -> Option<Duration> {
        self.sleeper.announce();
        if self.events.is_empty() { limit } else { Some(Duration::ZERO) }
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::Thread(self.program)
    }

    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    pub(crate) fn opened(&mut self, socket: Socket) {
        self.insert(socket, State::New);
    }

    pub(crate) fn became(&mut self, socket: Socket, kind: Kind) {
        let Ok(entry) = self.entry_mut(socket) else { return };
        match (&entry.state, kind) {
            (State::New, Kind::Listener) => entry.state = State::Listener(VecDeque::new()),
            (State::New, Kind::Connection) => {
                entry.state = State::Connection(Connection { opening: true, ..Connection::default() });
            }
            _ => return,
        }
        self.post(Job::Watch(socket, kind));
        self.commit();
    }

    /// The epoll sets that a socket is in.
    pub(crate) fn members(&mut self, socket: Socket) -> Result<&mut Vec<Member>, Error> {
        Ok(&mut self.entry_mut(socket)?.members)
    }

    pub(crate) fn accept(&mut self, listener: Socket) -> Result<(Socket, Option<SocketAddr>), Error> {
        let State::Listener(waiting) = &mut self.entry_mut(listener)?.state else {
            return Err(Error::Invalid);
        };
        let accepted = waiting.pop_front().ok_or(Error::WouldBlock)?;
        self.post(Job::Took(listener));
        self.commit();
        Ok(accepted)
    }

    pub(crate) fn is_opening(&self, socket: Socket) -> Result<bool, Error> {
        Ok(self.connection(socket)?.opening)
    }

    pub(crate) fn read(&mut self, socket: Socket, out: &mut [u8], peek: bool) -> Result<usize, Error> {
        let connection = self.connection_mut(socket)?;
        if out.is_empty() {
            return Ok(0);
        }
        if connection.unread.is_empty() {
            return match connection.ended {
                true => connection.take_failure().map_or(Ok(0), Err),
                false => Err(Error::WouldBlock),
            };
        }
        if peek {
            return Ok(peek_at(&connection.unread, out));
        }
        let (mut read, mut is_wanted) = (0, false);
        while read < out.len()
            && let Ok(Connection { unread, .. }) = self.connection_mut(socket)
            && let Some(mut chunk) = unread.pop_front()
        {
            let len = chunk.unread().len().min(out.len() - read);
            out[read..read + len].copy_from_slice(&chunk.unread()[..len]);
            read += len;
            chunk.consume(len);
            if chunk.unread().is_empty() {
                is_wanted |= chunk.is_wanted();
                self.post(Job::Read(socket, chunk));
            } else {
                unread.push_front(chunk);
            }
        }
        match is_wanted {
            true => self.commit(),
            false => self.jobs.publish(),
        }
        Ok(read)
    }

    pub(crate) fn write(&mut self, socket: Socket, bytes: &[u8]) -> Result<usize, Error> {
        let connection = self.connection_mut(socket)?;
        if connection.opening {
            return Err(Error::WouldBlock);
        }
        if connection.failure.is_some() {
            return Err(connection.take_failure().unwrap_or(Error::Pipe));
        }
        let mut written = 0;
        while written < bytes.len()
            && let Ok(Connection { sending: (sent, chunks), .. }) = self.connection_mut(socket)
            && *sent < SENDING_MAX
            && *chunks < CHUNKS_MAX
        {
            let len = (bytes.len() - written).min(CHUNK).min(SENDING_MAX - *sent);
            (*sent, *chunks) = (*sent + len, *chunks + 1);
            let mut chunk = self.spare.take();
            chunk.room()[..len].copy_from_slice(&bytes[written..written + len]);
            chunk.set_len(len);
            self.post(Job::Write(socket, chunk));
            written += len;
        }
        let connection = self.connection_mut(socket)?;
        let (sent, chunks) = connection.sending;
        let is_full = sent == SENDING_MAX || chunks == CHUNKS_MAX;
        if is_full && !std::mem::replace(&mut connection.full, true) {
            self.post(Job::Full(socket));
        }
        self.commit();
        if written == 0 && !bytes.is_empty() { Err(Error::WouldBlock) } else { Ok(written) }
    }

    pub(crate) fn unread(&self, socket: Socket) -> Result<usize, Error> {
        Ok(self.connection(socket)?.unread.iter().map(|chunk| chunk.unread().len()).sum())
    }

    pub(crate) fn readiness(&self, socket: Socket) -> Result<Readiness, Error> {
        Ok(match &self.entry(socket)?.state {
            State::New => Readiness::NONE,
            State::Listener(waiting) if waiting.is_empty() => Readiness::NONE,
            State::Listener(_) => Readiness::READABLE,
            State::Connection(connection) => connection.readiness(),
        })
    }

    pub(crate) fn take_error(&mut self, socket: Socket) -> Result<Option<Error>, Error> {
        Ok(match &mut self.entry_mut(socket)?.state {
            State::Connection(connection) => connection.take_failure(),
            _ => None,
        })
    }

    /// What was written is still sent. A connection with bytes that were not read is reset.
    pub(crate) fn close(&mut self, socket: Socket) -> Result<Vec<Member>, Error> {
        let members = self.remove(socket)?;
        self.post(Job::Close(socket));
        self.commit();
        Ok(members)
    }

    pub(crate) fn abort(&mut self, socket: Socket) -> Result<Vec<Member>, Error> {
        self.connection(socket)?;
        let members = self.remove(socket)?;
        self.post(Job::Abort(socket));
        self.commit();
        Ok(members)
    }

    fn remove(&mut self, socket: Socket) -> Result<Vec<Member>, Error> {
        let place = self.entries.get_mut(socket.0 as usize).ok_or(Error::BadDescriptor)?;
        let Entry { state, members } = place.take().ok_or(Error::BadDescriptor)?;
        match state {
            State::New => {}
            State::Listener(waiting) => {
                for (socket, _) in waiting {
                    let _ = self.abort(socket);
                }
            }
            State::Connection(connection) => {
                for chunk in connection.unread {
                    self.post(Job::Unread(chunk));
                }
            }
        }
        Ok(members)
    }

    /// Ends the stack, which sends what was written. In a forked child only what is here ends: the thread is the
    /// parent's.
    pub(crate) fn end(mut self) -> Option<Queue> {
        if self.is_left_behind() {
            std::mem::forget(self);
            return None;
        }
        self.post(Job::End);
        self.commit();
        self.thread.join().ok().flatten()
    }

    fn post(&mut self, mut job: Job) {
        while let Err(back) = self.jobs.push(job) {
            job = back;
            self.commit();
            thread::yield_now();
        }
    }

    /// Publishes jobs, and wakes the stack if it sleeps.
    fn commit(&mut self) {
        self.jobs.publish();
        if self.waker.must_wake() {
            self.stack.wake();
        }
    }

    fn insert(&mut self, socket: Socket, state: State) {
        let place = socket.0 as usize;
        if self.entries.len() <= place {
            self.entries.resize_with(place + 1, || None);
        }
        self.entries[place] = Some(Entry { state, members: Vec::new() });
    }

    fn entry(&self, socket: Socket) -> Result<&Entry, Error> {
        self.entries.get(socket.0 as usize).and_then(Option::as_ref).ok_or(Error::BadDescriptor)
    }

    fn entry_mut(&mut self, socket: Socket) -> Result<&mut Entry, Error> {
        self.entries.get_mut(socket.0 as usize).and_then(Option::as_mut).ok_or(Error::BadDescriptor)
    }

    fn connection(&self, socket: Socket) -> Result<&Connection, Error> {
        match &self.entry(socket)?.state {
            State::Connection(connection) => Ok(connection),
            _ => Err(Error::NotConnected),
        }
    }

    fn connection_mut(&mut self, socket: Socket) -> Result<&mut Connection, Error> {
        match &mut self.entry_mut(socket)?.state {
            State::Connection(connection) => Ok(connection),
            _ => Err(Error::NotConnected),
        }
    }
}

/// Copies what is unread, and leaves it.
fn peek_at(unread: &VecDeque<Chunk>, out: &mut [u8]) -> usize {
    let mut read = 0;
    for chunk in unread {
        let len = chunk.unread().len().min(out.len() - read);
        out[read..read + len].copy_from_slice(&chunk.unread()[..len]);
        read += len;
    }
    read
}
