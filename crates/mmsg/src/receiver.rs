//! Receiving from the same sockets for ever: they are registered once, messages come into buffers
//! of the library, in batches, and no epoll is needed.
//!
//! On io_uring a poll that lasts tells of each socket, and one submission then receives from all
//! that were told of. A poll also tells whether one datagram came or several (`ready.rs`), so that
//! nobody has to ask a socket that is empty; ADR 12 has the alternatives.

use std::io;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sys::mapping::ForkMark;
use sys::message;
use sys::socket::{self, Kind};
use sys::uring::{Sleep, cqueue, opcode, types};

use crate::Backend;

mod batch;
mod errors;
mod pool;
mod ready;
mod sockets;

pub use batch::{Batch, Event, Kept, Message};
pub use errors::{AddError, CreateError, WaitError};

use batch::{NO_BUFFER, Raw};

use pool::{Pool, Wanted};
use ready::{GENERATIONS, Ready};
use sockets::{Entry, Sockets};

/// With fewer sockets than this a system call each costs less than a submission.
const SUBMISSION_LEAST: usize = 3;

/// Submissions for receiving in one call: a socket that still has messages then has a queue,
/// which recvmmsg(2) empties cheaper.
const ROUNDS: usize = 2;

/// Messages that one recvmmsg(2) takes.
const QUEUE_MAX: usize = 64;

/// How long a socket of which reports said that it is empty is believed without a look. A kernel
/// that wakes once for several datagrams would delay them by this, no longer.
const TRUST: Duration = Duration::from_millis(100);

/// Errors in a row that are told of a socket; it says nothing of more until something changes.
const FAILURES_MAX: u8 = 2;

/// A timeout that is as good as none; the clock reaches over a shorter one.
const FAR: Duration = Duration::from_secs(1 << 32);

/// Waits between looks at the clock.
const TURNS: u32 = 256;

/// How a [`Receiver`] is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Buffers in the pool.
    pub buffers: usize,
    /// Bytes of each. With GRO a train of datagrams has up to 64 KiB.
    pub buffer_size: usize,
    /// Sockets at most; no more than the limit of open files.
    pub sockets: u32,
    /// Tell who sent each message; it takes a little more time.
    pub addresses: bool,
    /// Take trains of datagrams of one flow as one message (UDP_GRO).
    pub gro: bool,
    /// The backend; [`Backend::Uring`] becomes [`Backend::Syscalls`] where there is no io_uring,
    /// where its direct descriptors keep closed sockets open (before Linux 6.13), where
    /// RLIMIT_MEMLOCK has no room for it, or where the process found too few descriptors for it
    /// at first.
    pub backend: Backend,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            buffers: 1024,
            buffer_size: 2048,
            sockets: 1024,
            addresses: false,
            gro: false,
            backend: Backend::chosen(),
        }
    }
}

/// A registered socket. One that was removed never comes back under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    slot: u32,
    generation: u32,
}

impl SocketId {
    /// As a number, never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The socket of this number, if it is one.
    pub fn from_bits(bits: u64) -> SocketId {
        SocketId { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Sockets whose messages come in batches. It belongs to the thread that made it.
pub struct Receiver {
    ready: ManuallyDrop<Ready>,
    sockets: Sockets,
    pool: Rc<Pool>,
    wanted: Wanted,
    messages: Vec<Raw>,
    /// Receives that were submitted, by the number in their data: socket and buffer.
    asked: Vec<(u32, u32)>,
    answers: Vec<(u32, i32, u32)>,
    /// How many of them have not been answered.
    in_flight: usize,
    turns: u32,
    swept: Instant,
    calls: u64,
    fork_mark: ForkMark,
    _not_send: PhantomData<*const ()>,
}

impl Receiver {
    /// A receiver for the calling thread.
    ///
    /// # Errors
    ///
    /// See [`CreateError`].
    pub fn new(options: &Options) -> Result<Receiver, CreateError> {
        let within = |name, value: usize, most: usize| {
            if (1..=most).contains(&value) { Ok(()) } else { Err(CreateError::Setting(name, most)) }
        };
        within("buffers", options.buffers, BUFFERS_MAX)?;
        within("buffer_size", options.buffer_size, BUFFER_SIZE_MAX)?;
        within("sockets", options.sockets as usize, SOCKETS_MAX)?;
        let ready = Ready::new(options.backend == Backend::Uring, options.sockets)?;
        let tells_changes = matches!(ready, Ready::Uring(_));
        Ok(Receiver {
            ready: ManuallyDrop::new(ready),
            sockets: Sockets::new(options.sockets as usize, tells_changes),
            pool: Pool::new(options.buffers, options.buffer_size)?,
            wanted: Wanted { addresses: options.addresses, gro: options.gro },
            messages: Vec::new(),
            asked: Vec::new(),
            answers: Vec::new(),
            in_flight: 0,
            turns: 0,
            swept: Instant::now(),
            calls: 0,
            fork_mark: ForkMark::new()?,
            _not_send: PhantomData,
        })
    }

    /// The backend in use.
    pub fn backend(&self) -> Backend {
        match *self.ready {
            Ready::Uring(_) => Backend::Uring,
            Ready::Epoll { .. } => Backend::Syscalls,
        }
    }

    /// System calls made so far.
    pub fn system_calls(&self) -> u64 {
        self.calls + self.ready.calls()
    }

    /// Whether there is no room for another socket.
    pub fn is_full(&self) -> bool {
        self.sockets.free.is_empty() && self.sockets.entries.len() == self.sockets.most
    }

    /// Whether this is a registered socket's descriptor, which is closed with the receiver.
    pub fn holds(&self, fd: RawFd) -> bool {
        self.sockets.entries.iter().flatten().any(|entry| entry.fd.as_raw_fd() == fd)
    }

    /// Whether this process made the receiver: the child of a fork cannot use it.
    pub fn belongs_here(&self) -> bool {
        self.fork_mark.is_here()
    }

    /// Registers a socket; `cookie` comes with each of its messages. Nobody else may receive from
    /// it until it is removed. Sending is free, see [`Self::socket`].
    ///
    /// # Errors
    ///
    /// See [`AddError`]; the socket is closed then.
    pub fn add(&mut self, socket: impl Into<OwnedFd>, cookie: u64) -> Result<SocketId, AddError> {
        if !self.fork_mark.is_here() {
            return Err(AddError::Forked);
        }
        let fd = socket.into();
        let kind = socket::kind(fd.as_fd())?.ok_or(io::Error::from_raw_os_error(libc::ENOTSOCK))?;
        let protocol = message::protocol(fd.as_raw_fd())?;
        let is_udp = kind == Kind::Message && protocol == libc::IPPROTO_UDP;
        let is_tcp = kind == Kind::Stream && protocol == libc::IPPROTO_TCP;
        if self.wanted.gro && is_udp {
            message::set_udp_gro(fd.as_fd())?;
        }
        let slot = self.sockets.free_slot().ok_or(AddError::Full)?;
        let generation = self.sockets.generations[slot as usize];
        if let Err(error) = self.ready.add(slot, generation, fd.as_fd()) {
            self.sockets.free.push(slot);
            return Err(error.into());
        }
        self.sockets.entries[slot as usize] = Some(Entry {
            fd,
            cookie,
            kind,
            is_udp,
            is_tcp,
            generation,
            sure: 0,
            drain: false,
            is_pending: false,
            is_trusted: false,
            tells_changes: self.sockets.tells_changes,
            failures: 0,
            has_ended: false,
        });
        Ok(SocketId { slot, generation })
    }

    /// A registered socket, to send on it or to set its options.
    pub fn socket(&self, id: SocketId) -> Option<BorrowedFd<'_>> {
        self.sockets.get(id.slot, id.generation).map(|entry| entry.fd.as_fd())
    }

    /// Gives a socket back. Messages of it that were not taken wait in it, and UDP_GRO stays set.
    pub fn remove(&mut self, id: SocketId) -> Option<OwnedFd> {
        self.sockets.get(id.slot, id.generation)?;
        let entry = self.sockets.entries[id.slot as usize].take()?;
        if self.fork_mark.is_here() {
            // A poll that is not there has ended by itself.
            let _ = self.ready.remove(id.slot, id.generation, entry.fd.as_fd());
        }
        let generation = &mut self.sockets.generations[id.slot as usize];
        *generation = (*generation + 1) & GENERATIONS;
        *generation += u32::from(*generation == 0);
        self.sockets.pending.retain(|&slot| slot != id.slot);
        self.sockets.trusted.retain(|&slot| slot != id.slot);
        self.sockets.free.push(id.slot);
        Some(entry.fd)
    }

    /// Takes up to `most` messages, or waits until there is one or the time is over (`None`:
    /// never). Each socket with messages has one before one of them has a second.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait(&mut self, most: usize, timeout: Option<Duration>) -> Result<Batch<'_>, WaitError> {
        if !self.fork_mark.is_here() {
            return Err(WaitError::Forked);
        }
        // Those of a batch that was forgotten.
        self.recycle();
        if self.pool.available() == 0 {
            return Err(WaitError::NoBuffers);
        }
        let timeout = timeout.filter(|&timeout| timeout < FAR);
        let mut deadline = None;
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) && self.swept.elapsed() > TRUST {
            self.sweep();
        }
        loop {
            if !self.sockets.pending.is_empty() || self.in_flight > 0 {
                if self.ready.may_find() && self.backend() == Backend::Uring {
                    self.look(None)?;
                }
                self.fill(most).map_err(wait_error)?;
                if !self.messages.is_empty() || most == 0 {
                    break;
                }
            }
            let left = match (timeout, deadline) {
                (None, _) => None,
                (Some(timeout), None) => {
                    // Asking for the time is put off until something has been found empty.
                    deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
                    Some(timeout)
                }
                (Some(_), Some(deadline)) => Some(deadline.saturating_duration_since(Instant::now())),
            };
            let trusting = !self.sockets.trusted.is_empty();
            let sleep = if trusting { Some(left.map_or(TRUST, |left| left.min(TRUST))) } else { left };
            self.look(Some(sleep))?;
            let is_quiet = self.sockets.pending.is_empty();
            if is_quiet && trusting && self.swept.elapsed() >= TRUST {
                self.sweep();
            }
            // The clock tells, also where reports come all the time and nothing with them; a look may end early, with
            // the report of a socket that is gone, say.
            let is_over = left.is_some_and(|left| left.is_zero())
                || is_quiet && deadline.is_some_and(|deadline| deadline <= Instant::now());
            if is_over {
                // What the sweep asks for is still looked at.
                self.fill(most).map_err(wait_error)?;
                break;
            }
        }
        Ok(Batch { receiver: self })
    }

    /// The messages of a batch that was forgotten ([`mem::forget`]) and not dropped: they stay
    /// until the next wait.
    pub fn forgotten(&mut self) -> Batch<'_> {
        Batch { receiver: self }
    }

    fn look(&mut self, sleep: Option<Option<Duration>>) -> Result<(), WaitError> {
        let sockets = &mut self.sockets;
        let answers = &mut self.answers;
        let mut found = |slot, generation, found| sockets.found(slot, generation, found);
        self.ready
            .look(sleep, &mut found, &mut |data, result, flags| answers.push((data as u32, result, flags)))
            .map_err(wait_error)
    }

    /// Has every socket that is believed to be empty looked at.
    fn sweep(&mut self) {
        self.swept = Instant::now();
        for slot in mem::take(&mut self.sockets.trusted) {
            if let Some(entry) = self.sockets.entries[slot as usize].as_mut() {
                entry.is_trusted = false;
                entry.drain = true;
                self.sockets.queue(slot);
            }
        }
    }

    /// Receives what is pending: from each socket in turn, until there are `most` messages or no
    /// buffer is left.
    fn fill(&mut self, most: usize) -> io::Result<()> {
        if self.in_flight > 0 {
            self.collect()?;
        }
        for round in 0.. {
            let room = most.saturating_sub(self.messages.len()).min(self.pool.available());
            let count = self.sockets.pending.len().min(room);
            if count == 0 {
                break;
            }
            // Sockets that still have messages after some rounds have a queue.
            let share = if round < ROUNDS { 1 } else { (room / count).clamp(1, QUEUE_MAX) };
            if share == 1 && self.backend() == Backend::Uring && count >= SUBMISSION_LEAST {
                self.receive_together(count)?;
            } else {
                for _ in 0..count {
                    self.receive_alone(share);
                }
            }
        }
        Ok(())
    }

    /// One message of each of the first sockets that are pending, in one submission.
    fn receive_together(&mut self, count: usize) -> io::Result<()> {
        let Ready::Uring(polls) = &mut *self.ready else { return Ok(()) };
        self.asked.clear();
        for _ in 0..count {
            let Some(slot) = self.sockets.next() else { break };
            let Some(entry) = self.sockets.entries[slot as usize].as_ref() else { continue };
            let Some(buffer) = self.pool.take() else { break };
            let fd = types::Fixed(slot);
            let flags = entry.flags();
            let request = if self.wanted.headers(entry) {
                let header = self.pool.header(buffer, self.wanted).cast::<libc::msghdr>();
                opcode::RecvMsg::new(fd, header).flags(flags as u32).build()
            } else {
                let (room, len) = self.pool.room(buffer);
                opcode::Recv::new(fd, room, len as u32).flags(flags).build()
            };
            let request = request.user_data(self.asked.len() as u64);
            self.asked.push((slot, buffer));
            // SAFETY: the buffer is in nobody's hands until its request is answered, and the
            // pool outlives the ring (see `drop`).
            while !unsafe { polls.ring.push(&request) } {
                self.calls += 1;
                polls.ring.submit()?;
            }
            self.in_flight += 1;
        }
        self.collect()
    }

    /// Submits what is queued and takes the answers to all that was asked.
    fn collect(&mut self) -> io::Result<()> {
        let Ready::Uring(polls) = &mut *self.ready else { return Ok(()) };
        let sockets = &mut self.sockets;
        let answers = &mut self.answers;
        while answers.len() < self.in_flight {
            self.calls += 1;
            let entered = if polls.ring.queued() > 0 {
                polls.ring.submit()
            } else {
                polls.ring.enter(Sleep::Until { completions: 1, timeout: None, gather: None })
            };
            if let Err(error) = entered
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                return Err(error);
            }
            polls.reap(
                &mut |slot, generation, found| sockets.found(slot, generation, found),
                &mut |data, result, flags| {
                    answers.push((data as u32, result, flags));
                },
            )?;
        }
        self.in_flight = 0;
        let mut answers = mem::take(&mut self.answers);
        for (number, result, flags) in answers.drain(..) {
            let (slot, buffer) = self.asked[number as usize];
            self.settle(slot, buffer, result, Some(cqueue::sock_nonempty(flags)));
        }
        self.answers = answers;
        Ok(())
    }

    /// Up to `share` messages of the socket that is pending first, by system calls.
    fn receive_alone(&mut self, share: usize) {
        let Some(slot) = self.sockets.next() else { return };
        let Some(entry) = self.sockets.entries[slot as usize].as_ref() else { return };
        let (fd, flags) = (entry.fd.as_raw_fd(), entry.flags());
        self.calls += 1;
        // What ends has its end after one message, not as many empty ones as there is room for.
        if share > 1 && entry.drain && entry.kind == Kind::Message {
            return self.receive_queue(slot, fd, flags, share);
        }
        let headers = self.wanted.headers(entry);
        let Some(buffer) = self.pool.take() else { return };
        // SAFETY: the buffer is in nobody else's hands.
        let received = unsafe {
            if headers {
                message::receive_message(fd, self.pool.header(buffer, self.wanted).cast(), flags)
            } else {
                let (room, len) = self.pool.room(buffer);
                message::receive(fd, room, len, flags)
            }
        };
        self.settle(slot, buffer, result_of(received), None);
    }

    /// The beginning of a socket's queue.
    fn receive_queue(&mut self, slot: u32, fd: i32, flags: i32, share: usize) {
        let buffers: Vec<u32> = (0..share).map_while(|_| self.pool.take()).collect();
        // SAFETY: the headers are those of buffers that are in nobody else's hands; they are
        // copied back below, for the pool reads lengths, names and flags there.
        let mut headers: Vec<libc::mmsghdr> =
            buffers.iter().map(|&buffer| unsafe { *self.pool.header(buffer, self.wanted) }).collect();
        // SAFETY: as above.
        let received = unsafe { message::receive_messages(fd, headers.as_mut_ptr(), headers.len(), flags) };
        let count = *received.as_ref().unwrap_or(&0);
        for (at, &buffer) in buffers.iter().enumerate() {
            if at < count {
                // SAFETY: as above.
                unsafe { *self.pool.header(buffer, self.wanted) = headers[at] };
                self.settle(slot, buffer, self.pool.len_of(buffer) as i32, None);
            } else {
                self.pool.give_back(buffer);
            }
        }
        if count < buffers.len() {
            self.settle(
                slot,
                NO_BUFFER,
                received.err().map_or(-libc::EAGAIN, |error| result_of(Err(error))),
                None,
            );
        }
    }

    /// Takes what came of a receive, and decides whether the socket has more.
    fn settle(&mut self, slot: u32, buffer: u32, result: i32, more: Option<bool>) {
        let trusts = self.ready.tells_one();
        let Some(entry) = self.sockets.entries[slot as usize].as_mut() else {
            self.give_back(buffer);
            return;
        };
        let id = SocketId { slot, generation: entry.generation };
        let cookie = entry.cookie;
        let is_end = result == 0
            && match entry.kind {
                Kind::Stream => true,
                // Or a message without bytes; one that is the last of all is the end.
                Kind::Packets => message::has_ended(entry.fd.as_raw_fd()),
                Kind::Message => false,
            };
        if result == -libc::EAGAIN {
            // What is reported with nothing to receive (an error queue, an end of a datagram socket) would be
            // reported for ever.
            let is_vain = entry.sure > 0;
            (entry.drain, entry.sure, entry.failures) = (false, 0, 0);
            if is_vain {
                entry.tell_changes(&mut self.ready, slot);
            }
            self.give_back(buffer);
        } else if result < 0 {
            // A second one in a row is none that the socket told, but one that it has: it would have it for ever.
            entry.failures = entry.failures.saturating_add(1);
            (entry.drain, entry.sure) = (entry.failures < FAILURES_MAX, 0);
            if entry.failures >= FAILURES_MAX {
                entry.tell_changes(&mut self.ready, slot);
            }
            if entry.failures <= FAILURES_MAX {
                self.messages.push(Raw { id, cookie, buffer: NO_BUFFER, result });
            }
            self.give_back(buffer);
        } else {
            entry.failures = 0;
            if entry.drain {
                // Only TCP tells whether more waits, and only io_uring asks it.
                entry.drain = !entry.is_tcp || more != Some(false);
            } else {
                entry.sure = entry.sure.saturating_sub(1);
            }
            if is_end {
                (entry.drain, entry.sure) = (false, 0);
                self.give_back(buffer);
                self.messages.push(Raw { id, cookie, buffer: NO_BUFFER, result: 0 });
            } else {
                self.messages.push(Raw { id, cookie, buffer, result });
            }
        }
        let Some(entry) = self.sockets.entries[slot as usize].as_mut() else { return };
        if entry.drain || entry.sure > 0 {
            self.sockets.queue(slot);
        } else if trusts && entry.is_udp && result >= 0 && !entry.is_trusted {
            entry.is_trusted = true;
            self.sockets.trusted.push(slot);
        }
        if is_end {
            let Some(entry) = self.sockets.entries[slot as usize].as_mut() else { return };
            entry.has_ended = true;
            // Its end is told once; it would be reported for ever. A poll that is not there has
            // ended by itself.
            let _ = self.ready.remove(slot, entry.generation, entry.fd.as_fd());
        }
    }

    /// Gives the batch's buffers back: backwards, so that the one that was taken first is taken
    /// first again.
    fn recycle(&mut self) {
        for at in (0..self.messages.len()).rev() {
            self.give_back(self.messages[at].buffer);
        }
        self.messages.clear();
    }

    fn give_back(&self, buffer: u32) {
        if buffer != NO_BUFFER {
            self.pool.give_back(buffer);
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // In a forked child the ring's memory is not mapped and its polls are the parent's. What
        // is queued or asked is dropped with the ring, whose requests never wait.
        if self.fork_mark.is_here() {
            // SAFETY: nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ready) };
        }
    }
}

impl Wanted {
    /// Whether a message of this socket needs recvmsg(2).
    #[inline]
    fn headers(self, entry: &Entry) -> bool {
        self.addresses || self.gro && entry.is_udp
    }
}

fn wait_error(error: io::Error) -> WaitError {
    match error.kind() {
        io::ErrorKind::Interrupted => WaitError::Interrupted,
        _ => WaitError::Io(error),
    }
}

fn result_of(received: io::Result<usize>) -> i32 {
    match received {
        Ok(count) => count as i32,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}

const BUFFERS_MAX: usize = 1 << 20;
const BUFFER_SIZE_MAX: usize = 1 << 24;
/// Of a ring's completion queue two for each socket.
const SOCKETS_MAX: usize = 32_768;
