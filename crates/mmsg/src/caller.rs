//! The two calls: which entry is served how, and in which order.

use std::mem;

use sys::capabilities::Capabilities;
use sys::mapping::ForkMark;
use sys::message;
use sys::uring::squeue;

use crate::batch::Batch;
use crate::depth::{Depth, Plan};
use crate::late::Late;
use crate::notices;
use crate::repeats::{self, Repeats};
use crate::rooms::{self, Room};
use crate::{Backend, CallError, LIMITED, Mmep};

mod receive;
mod send;

use receive::{Lens, Receive};
use send::Send;

/// What one thread needs for [`recvmmmsg`](Self::recvmmmsg) and [`sendmmmsg`](Self::sendmmmsg),
/// kept from call to call. The functions [`crate::recvmmmsg`] and [`crate::sendmmmsg`] use one
/// that belongs to the thread.
pub struct Caller {
    backend: Backend,
    ring: RingState,
    fork_mark: Option<ForkMark>,
    depth: Depth,
    rooms: Vec<Room>,
    /// Entries with something left to do, in order.
    active: Vec<u32>,
    next_active: Vec<u32>,
    repeats: Repeats,
    late: Late,
    lens: Vec<Lens>,
    calls: u64,
}

enum RingState {
    Untried,
    Made(Box<Batch>),
    Unavailable,
}

impl Caller {
    /// One that uses io_uring where that works and system calls elsewhere, unless
    /// `MEGAPIPE_ENGINE=epoll` forbids the former.
    pub fn new() -> Caller {
        Caller::with_backend(Backend::chosen())
    }

    /// One with this backend. [`Backend::Uring`] becomes [`Backend::Syscalls`] where there is
    /// no io_uring.
    pub fn with_backend(backend: Backend) -> Caller {
        Caller {
            backend,
            ring: RingState::Untried,
            fork_mark: None,
            depth: Depth::default(),
            rooms: Vec::new(),
            active: Vec::new(),
            next_active: Vec::new(),
            repeats: Repeats::default(),
            late: Late::default(),
            lens: Vec::new(),
            calls: 0,
        }
    }

    /// The backend in use. Asking makes the ring, if there is to be one.
    pub fn backend(&mut self) -> Backend {
        match self.batch() {
            Some(_) => Backend::Uring,
            None => Backend::Syscalls,
        }
    }

    /// System calls made so far to receive and to send.
    pub fn system_calls(&self) -> u64 {
        match &self.ring {
            RingState::Made(batch) => self.calls + batch.calls,
            _ => self.calls,
        }
    }

    /// Receives what waits in many sockets, as [`crate::recvmmmsg`] says.
    ///
    /// # Safety
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub unsafe fn recvmmmsg(
        &mut self,
        eps: &mut [Mmep],
        msgs: &mut [libc::mmsghdr],
        flags: i32,
    ) -> Result<usize, CallError> {
        check(msgs.len(), flags)?;
        let limited = flags & LIMITED != 0;
        // These two leave the message where it is, or are about one byte: one of each socket, of which nothing is learnt.
        let is_usual = flags & (LIMITED | libc::MSG_PEEK | libc::MSG_OOB) == 0;
        let plan = is_usual.then(|| self.depth.plan());
        // A stream's short read is what a call that never waits gives anyway.
        let flags = flags & !(LIMITED | libc::MSG_WAITALL | libc::MSG_WAITFORONE) | libc::MSG_DONTWAIT;
        self.look_for_fork();
        let mut rooms = mem::take(&mut self.rooms);
        let late = mem::take(&mut self.late);
        let mut lens = mem::take(&mut self.lens);
        lens.clear();
        let limit = |ep: &Mmep| if limited { ep.num } else { 1 };
        rooms::side_by_side(eps, msgs.len(), limit, &mut rooms);
        let tells_cut =
            plan == Some(Plan::OneEach) && !self.depth.has_flags() && Capabilities::get().recv_tells_cut;
        let mut work = Receive { eps, msgs, rooms: &mut rooms, late, flags, lens, tells_cut };
        match plan {
            Some(Plan::Empty) => self.empty(&mut work),
            _ => self.serve(&mut work),
        }
        (self.late, self.lens) = (work.late, work.lens);
        if let Some(plan) = plan {
            self.look_back(plan, eps, msgs);
        }
        let total = rooms.iter().map(|room| room.done as usize).sum();
        self.rooms = rooms;
        Ok(total)
    }

    /// Sends messages down many sockets, as [`crate::sendmmmsg`] says.
    ///
    /// # Safety
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub unsafe fn sendmmmsg(
        &mut self,
        eps: &mut [Mmep],
        msgs: &mut [libc::mmsghdr],
        flags: i32,
    ) -> Result<usize, CallError> {
        check(msgs.len(), flags)?;
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        self.look_for_fork();
        let mut rooms = mem::take(&mut self.rooms);
        rooms.clear();
        rooms.extend(eps.iter_mut().map(|ep| {
            rooms::asked(ep, msgs.len()).unwrap_or_else(|| {
                ep.num = -libc::EINVAL;
                Room::default()
            })
        }));
        self.serve(&mut Send { eps, msgs, rooms: &mut rooms, flags });
        let total = rooms.iter().map(|room| room.done as usize).sum();
        self.rooms = rooms;
        Ok(total)
    }

    /// Empties one socket after the other, as far as the vector goes.
    fn empty(&mut self, work: &mut Receive<'_>) {
        let mut used = 0;
        for entry in 0..work.eps.len() {
            let left = work.msgs.len() - used;
            work.rooms[entry] = Room { start: used as u32, len: left as u32, done: 0 };
            work.eps[entry].offset = used as i32;
            work.eps[entry].num = if left == 0 { -libc::ENOBUFS } else { 0 };
            self.active.clear();
            self.active.extend((left > 0).then_some(entry as u32));
            self.calls += work.begin(&mut self.active);
            self.calls += self.active.iter().map(|&entry| work.call(entry)).sum::<u64>();
            used += work.rooms[entry].done as usize;
        }
    }

    /// Notes how long the queues were, and what flags messages had. Where each socket gave one message and there was room for
    /// more, the kernel is asked now and then which have more.
    fn look_back(&mut self, plan: Plan, eps: &[Mmep], msgs: &[libc::mmsghdr]) {
        let served = || eps.iter().filter(|ep| ep.num > 0);
        let count = served().count();
        if plan == Plan::OneEach || count == 0 {
            return self.depth.saw(count, 0);
        }
        let deep = match plan {
            Plan::OneEachAndCheck if msgs.len() > eps.len() => {
                self.calls += 1;
                message::readable(served().map(|ep| ep.sockfd))
            }
            _ => served().filter(|ep| ep.num > 1).count(),
        };
        self.depth.saw(count, deep);
        let received = served().flat_map(|ep| &msgs[ep.offset as usize..][..ep.num as usize]);
        let mut flags = received.map(|message| message.msg_hdr.msg_flags);
        self.depth.saw_flags(flags.any(|flags| flags & !libc::MSG_TRUNC != 0));
    }

    /// Serves every entry that has a room: all sockets at once, entries that name a socket
    /// again one after the other.
    fn serve(&mut self, work: &mut impl Work) {
        let rooms = work.rooms().iter().enumerate();
        let with_room = rooms.filter(|(_, room)| room.len > 0).map(|(entry, _)| entry as u32);
        if !self.repeats.any(work.eps()) {
            self.active.clear();
            self.active.extend(with_room);
            return self.serve_distinct(work);
        }
        let ranks = repeats::ranks(work.eps());
        let mut order: Vec<u32> = with_room.collect();
        order.sort_by_key(|entry| ranks[*entry as usize]);
        for rank in order.chunk_by(|one, other| ranks[*one as usize] == ranks[*other as usize]) {
            self.active.clear();
            self.active.extend(rank);
            self.serve_distinct(work);
        }
    }

    /// Serves the active entries, no two of which name the same socket.
    fn serve_distinct(&mut self, work: &mut impl Work) {
        self.calls += work.begin(&mut self.active);
        let mut round = 0;
        while work.pays_as_submission(&self.active, round) {
            if self.batch().is_none() {
                break;
            }
            let RingState::Made(batch) = &mut self.ring else { break };
            self.next_active.clear();
            let next = &mut self.next_active;
            if !submit(batch, &self.active, work, next) {
                // Its queue still has what was not done; the system calls below do that.
                self.calls += batch.calls;
                self.ring = RingState::Unavailable;
                let unfinished = |entry: &&u32| work.is_unfinished(**entry);
                self.next_active = self.active.iter().filter(unfinished).copied().collect();
            }
            mem::swap(&mut self.active, &mut self.next_active);
            round += 1;
        }
        for &entry in &self.active {
            self.calls += work.call(entry);
        }
    }

    /// The ring; none where there is to be none.
    fn batch(&mut self) -> Option<&mut Batch> {
        if matches!(self.ring, RingState::Untried) {
            self.ring = match self.backend {
                Backend::Uring => self.make_ring(),
                Backend::Syscalls => RingState::Unavailable,
            };
        }
        match &mut self.ring {
            RingState::Made(batch) => Some(batch),
            _ => None,
        }
    }

    fn make_ring(&mut self) -> RingState {
        if let Err(cause) = Capabilities::get().ring {
            notices::fallback(&cause);
            return RingState::Unavailable;
        }
        match (Batch::new(), ForkMark::new()) {
            (Ok(batch), Ok(mark)) => {
                self.fork_mark = Some(mark);
                RingState::Made(Box::new(batch))
            }
            // Short of memory or descriptors: the system calls need none.
            (Err(cause), _) => {
                notices::refused(&cause);
                RingState::Unavailable
            }
            (_, Err(cause)) => {
                notices::fallback(&cause);
                RingState::Unavailable
            }
        }
    }

    /// A child has its own ring: the parent's is not mapped here.
    #[inline]
    fn look_for_fork(&mut self) {
        if self.fork_mark.as_ref().is_some_and(|mark| !mark.is_here()) {
            self.ring = RingState::Untried;
            self.fork_mark = None;
        }
    }
}

impl Default for Caller {
    fn default() -> Caller {
        Caller::new()
    }
}

fn check(vlen: usize, flags: i32) -> Result<(), CallError> {
    if flags & MSG_CMSG_COMPAT != 0 {
        return Err(CallError::Flags);
    }
    if vlen > i32::MAX as usize {
        return Err(CallError::TooLong);
    }
    Ok(())
}

/// Submits the next message of each active entry; whether the kernel took them all. Entries that may go on are put into `next`.
fn submit(batch: &mut Batch, active: &[u32], work: &mut impl Work, next: &mut Vec<u32>) -> bool {
    // Completions come in the order of submission, but `next` must not depend on that.
    let (mut pushed, mut results) = (0, 0);
    let mut stopped = None;
    for &entry in active {
        let request = work.request(entry);
        let mut done = |data, result| {
            results += 1;
            next.extend(work.completed(data, result).then_some(data as u32));
        };
        // SAFETY: the request never waits (MSG_DONTWAIT), and what it points to is the
        // caller's, who lends it for the whole call.
        if let Err(cause) = unsafe { batch.push(&request, &mut done) } {
            stopped = Some(cause);
            break;
        }
        pushed += 1;
    }
    if stopped.is_none() {
        let mut done = |data, result| {
            results += 1;
            next.extend(work.completed(data, result).then_some(data as u32));
        };
        stopped = batch.finish(&mut done).err();
    }
    let ended = pushed - stopped.as_ref().map_or(0, |stopped| stopped.undone);
    if results < ended {
        active[..ended].iter().for_each(|&entry| work.unreported(entry));
    }
    next.sort_unstable();
    stopped.is_none()
}

/// One direction of a call.
pub(crate) trait Work {
    fn eps(&self) -> &[Mmep];
    fn rooms(&self) -> &[Room];
    /// Takes out the entries that are answered without a submission; by system calls, which are counted.
    fn begin(&mut self, _active: &mut Vec<u32>) -> u64 {
        0
    }
    /// Whether another submission for these entries costs less than a call each.
    fn pays_as_submission(&self, active: &[u32], round: usize) -> bool;
    /// The entry's next message; the lower half of the request's data is the entry.
    fn request(&mut self, entry: u32) -> squeue::Entry;
    /// Takes the result of the request with this data; true if the entry may go on.
    fn completed(&mut self, data: u64, result: i32) -> bool;
    /// The request of this entry has ended; if it was silent and has not completed, it succeeded.
    fn unreported(&mut self, _entry: u32) {}
    /// The rest of the entry, by system calls, which are counted.
    fn call(&mut self, entry: u32) -> u64;

    /// The entry has neither an error nor all that it may have.
    fn is_unfinished(&self, entry: u32) -> bool {
        let entry = entry as usize;
        self.rooms()[entry].left() > 0 && self.eps()[entry].num >= 0
    }
}

/// The result that a system call would have had: it looks at the descriptor before it looks at
/// the message, and a request does that afterwards.
#[inline]
fn as_from_a_call(fd: i32, result: i32) -> i32 {
    if result >= 0 || ![-libc::EFAULT, -libc::EMSGSIZE, -libc::EINVAL].contains(&result) {
        return result;
    }
    let bad = message::protocol(fd).err().and_then(|error| error.raw_os_error());
    bad.map_or(result, |errno| -errno)
}

/// A count or a negative errno, as a completion has it. A count beyond 31 bits does not occur:
/// the kernel moves less at a time.
fn as_result(result: std::io::Result<usize>) -> i32 {
    match result {
        Ok(count) => count as i32,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// `MSG_CMSG_COMPAT`, which the kernel keeps for itself.
const MSG_CMSG_COMPAT: i32 = i32::MIN;
