//! The two calls: which entry is served how, and in which order.

use std::mem;

use sys::capabilities::Capabilities;
use sys::mapping::ForkMark;
use sys::message;
use sys::uring::{opcode, squeue, types};

use crate::batch::{Batch, Stopped};
use crate::late::Late;
use crate::repeats::{self, Repeats};
use crate::rooms::{self, Planner, Room};
use crate::{Backend, CallError, Mmep};

/// With fewer sockets than this a system call each takes so much less CPU time than a submission
/// (a tenth, at 8; ADR 12) that it does not matter that there are more of them.
const SUBMISSION_LEAST: usize = 16;

/// Submissions for receiving in one call: a socket that still has messages then has a queue,
/// which recvmmsg(2) empties cheaper.
const RECEIVE_ROUNDS: usize = 2;

/// In a request's data: it was recv(2), into so many bytes as the bits between tell.
const LIGHT: u64 = 1 << 63;

/// A message longer than this is left to recvmsg(2), whose bounds are other than those of a
/// request (a length of 32 bits).
const LIGHT_MAX: usize = i32::MAX as usize & !0xffff;

/// What one thread needs for [`recvmmmsg`](Self::recvmmmsg) and [`sendmmmsg`](Self::sendmmmsg),
/// kept from call to call. The functions [`crate::recvmmmsg`] and [`crate::sendmmmsg`] use one
/// that belongs to the thread.
pub struct Caller {
    backend: Backend,
    ring: RingState,
    fork_mark: Option<ForkMark>,
    planner: Planner,
    rooms: Vec<Room>,
    /// Entries with something left to do, in order.
    active: Vec<u32>,
    next_active: Vec<u32>,
    repeats: Repeats,
    late: Late,
    turn: usize,
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
            planner: Planner::default(),
            rooms: Vec::new(),
            active: Vec::new(),
            next_active: Vec::new(),
            repeats: Repeats::default(),
            late: Late::default(),
            turn: 0,
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
        // A stream's short read is what a call that never waits gives anyway.
        let flags = flags & !(libc::MSG_WAITALL | libc::MSG_WAITFORONE) | libc::MSG_DONTWAIT;
        self.look_for_fork();
        let mut rooms = mem::take(&mut self.rooms);
        self.planner.receive(eps, msgs.len(), self.turn, &mut rooms);
        self.turn = self.turn.wrapping_add(1);
        let mut work = Receive { eps, msgs, rooms: &mut rooms, late: mem::take(&mut self.late), flags };
        self.serve(&mut work);
        self.late = work.late;
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

    /// Serves every entry that has a room: all sockets at once, entries that name a socket
    /// again one after the other.
    fn serve(&mut self, work: &mut impl Work) {
        let ranks = if self.repeats.any(work.eps()) { repeats::ranks(work.eps()) } else { Vec::new() };
        for rank in 0..=ranks.iter().copied().max().unwrap_or(0) {
            self.active.clear();
            let has_rank = |entry: usize| ranks.is_empty() || ranks[entry] == rank;
            let rooms = work.rooms().iter().enumerate();
            self.active.extend(
                rooms.filter(|&(entry, room)| room.len > 0 && has_rank(entry)).map(|(entry, _)| entry as u32),
            );
            work.begin(&mut self.active);
            self.serve_distinct(work);
        }
    }

    /// Serves the active entries, no two of which name the same socket.
    fn serve_distinct(&mut self, work: &mut impl Work) {
        let mut round = 0;
        while self.active.len() >= SUBMISSION_LEAST && work.pays_as_submission(&self.active, round) {
            if self.batch().is_none() {
                break;
            }
            let RingState::Made(batch) = &mut self.ring else { break };
            self.next_active.clear();
            let next = &mut self.next_active;
            if submit(batch, &self.active, work, next).is_err() {
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
        if Capabilities::get().ring.is_err() {
            return RingState::Unavailable;
        }
        match (Batch::new(), ForkMark::new()) {
            (Ok(batch), Ok(mark)) => {
                self.fork_mark = Some(mark);
                RingState::Made(Box::new(batch))
            }
            // Short of memory or descriptors: the system calls need none.
            _ => RingState::Unavailable,
        }
    }

    /// A child has its own ring: the parent's is not mapped here.
    #[inline]
    fn look_for_fork(&mut self) {
        if self.fork_mark.as_ref().is_some_and(|mark| !mark.is_here()) {
            self.leave_ring();
            self.ring = RingState::Untried;
        }
    }

    /// Gives the parent's ring up without touching where it was mapped there.
    fn leave_ring(&mut self) {
        mem::forget(mem::replace(&mut self.ring, RingState::Unavailable));
        self.fork_mark = None;
    }
}

impl Default for Caller {
    fn default() -> Caller {
        Caller::new()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.fork_mark.as_ref().is_some_and(|mark| !mark.is_here()) {
            self.leave_ring();
        }
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

/// Submits the next message of each active entry. Entries that may go on are put into `next`.
fn submit(
    batch: &mut Batch,
    active: &[u32],
    work: &mut impl Work,
    next: &mut Vec<u32>,
) -> Result<(), Stopped> {
    // Completions come in the order of submission, but `next` must not depend on that.
    let mut results = 0;
    for &entry in active {
        let request = work.request(entry);
        let mut done = |data, result| {
            results += 1;
            next.extend(work.completed(data, result).then_some(data as u32));
        };
        // SAFETY: the request never waits (MSG_DONTWAIT), and what it points to is the
        // caller's, who lends it for the whole call.
        unsafe { batch.push(&request, &mut done)? };
    }
    batch.finish(&mut |data, result| {
        results += 1;
        next.extend(work.completed(data, result).then_some(data as u32));
    })?;
    debug_assert_eq!(results, active.len());
    next.sort_unstable();
    Ok(())
}

/// One direction of a call.
trait Work {
    fn eps(&self) -> &[Mmep];
    fn rooms(&self) -> &[Room];
    /// Takes out the entries that are answered already.
    fn begin(&mut self, _active: &mut Vec<u32>) {}
    /// Whether another submission for these entries costs less than a call each.
    fn pays_as_submission(&self, active: &[u32], round: usize) -> bool;
    /// The entry's next message; the lower half of the request's data is the entry.
    fn request(&mut self, entry: u32) -> squeue::Entry;
    /// Takes the result of the request with this data; true if the entry may go on.
    fn completed(&mut self, data: u64, result: i32) -> bool;
    /// The rest of the entry, by system calls, which are counted.
    fn call(&mut self, entry: u32) -> u64;

    /// The entry has neither an error nor all that it may have.
    fn is_unfinished(&self, entry: u32) -> bool {
        let entry = entry as usize;
        self.rooms()[entry].left() > 0 && self.eps()[entry].num >= 0
    }
}

struct Receive<'call> {
    eps: &'call mut [Mmep],
    msgs: &'call mut [libc::mmsghdr],
    rooms: &'call mut [Room],
    late: Late,
    flags: i32,
}

impl Receive<'_> {
    /// The length of a message for which recv(2) gives all that recvmsg(2) would: it has one
    /// piece and wants neither address nor control data, and the caller asked for the real
    /// length, which tells whether it was cut off.
    #[inline]
    fn light(&self, header: &libc::msghdr) -> Option<(*mut u8, usize)> {
        const OTHER: i32 = libc::MSG_ERRQUEUE | libc::MSG_OOB | libc::MSG_CMSG_CLOEXEC;
        let plain = self.flags & (libc::MSG_TRUNC | OTHER) == libc::MSG_TRUNC;
        let bare = header.msg_name.is_null() && header.msg_control.is_null() && header.msg_controllen == 0;
        if !plain
            || !bare
            || header.msg_iovlen != 1
            || header.msg_iov.is_null()
            || !header.msg_iov.is_aligned()
        {
            return None;
        }
        // SAFETY: with MSG_TRUNC the caller promises that the vector of pieces is readable.
        let piece = unsafe { *header.msg_iov };
        (piece.iov_len <= LIGHT_MAX).then_some((piece.iov_base.cast(), piece.iov_len))
    }

    /// Keeps what came of the entry's next message; recv(2) with room for `light` bytes wrote
    /// no header.
    #[inline]
    fn keep(&mut self, entry: usize, light: Option<usize>, result: i32) -> bool {
        let (ep, room) = (&mut self.eps[entry], &mut self.rooms[entry]);
        if result < 0 {
            if room.done == 0 {
                ep.num = result;
            } else {
                self.late.keep(ep.sockfd, -result);
            }
            return false;
        }
        let place = room.next();
        room.done += 1;
        ep.num = room.done as i32;
        let message = &mut self.msgs[place];
        message.msg_len = result as u32;
        if let Some(len) = light {
            let cut = result as usize > len;
            message.msg_hdr.msg_flags = if cut { libc::MSG_TRUNC } else { 0 };
        }
        room.left() > 0
    }
}

impl Work for Receive<'_> {
    fn eps(&self) -> &[Mmep] {
        self.eps
    }

    fn rooms(&self) -> &[Room] {
        self.rooms
    }

    /// An error that was kept is the next result.
    fn begin(&mut self, active: &mut Vec<u32>) {
        if self.late.is_empty() {
            return;
        }
        active.retain(|&entry| {
            let ep = &mut self.eps[entry as usize];
            let errno = self.late.take(ep.sockfd);
            ep.num = errno.map_or(ep.num, |errno| -errno);
            errno.is_none()
        });
    }

    fn pays_as_submission(&self, _active: &[u32], round: usize) -> bool {
        round < RECEIVE_ROUNDS
    }

    #[inline]
    fn request(&mut self, entry: u32) -> squeue::Entry {
        let (ep, room) = (&self.eps[entry as usize], &self.rooms[entry as usize]);
        let header = &mut self.msgs[room.next()].msg_hdr as *mut libc::msghdr;
        let fd = types::Fd(ep.sockfd);
        // SAFETY: just made of a reference.
        match self.light(unsafe { &*header }) {
            Some((room, len)) => opcode::Recv::new(fd, room, len as u32)
                .flags(self.flags)
                .build()
                .user_data(u64::from(entry) | (len as u64) << 32 | LIGHT),
            None => {
                opcode::RecvMsg::new(fd, header).flags(self.flags as u32).build().user_data(u64::from(entry))
            }
        }
    }

    #[inline]
    fn completed(&mut self, data: u64, result: i32) -> bool {
        let light = (data & LIGHT != 0).then_some((data & !LIGHT) as usize >> 32);
        let entry = data as u32 as usize;
        self.keep(entry, light, as_from_a_call(self.eps[entry].sockfd, result))
    }

    fn call(&mut self, entry: u32) -> u64 {
        let entry = entry as usize;
        let fd = self.eps[entry].sockfd;
        if self.rooms[entry].left() == 1 {
            let header = &raw mut self.msgs[self.rooms[entry].next()].msg_hdr;
            // SAFETY: the header is one of ours, and the caller answers for what it points to.
            let (light, received) = unsafe {
                match self.light(&*header) {
                    Some((room, len)) => (Some(len), message::receive(fd, room, len, self.flags)),
                    None => (None, message::receive_message(fd, header, self.flags)),
                }
            };
            self.keep(entry, light, as_result(received));
            return 1;
        }
        let mut calls = 0;
        while self.rooms[entry].left() > 0 {
            let (place, left) = (self.rooms[entry].next(), self.rooms[entry].left());
            calls += 1;
            // SAFETY: `left` headers from `place` on are ours; the caller answers for what
            // they point to.
            let received =
                unsafe { message::receive_messages(fd, &raw mut self.msgs[place], left, self.flags) };
            match received {
                Ok(count) => {
                    self.rooms[entry].done += count as u32;
                    self.eps[entry].num = self.rooms[entry].done as i32;
                    // Fewer: nothing is left, or there is an error, which the socket keeps.
                    if count < left.min(message::MESSAGES_MAX) {
                        break;
                    }
                }
                error => {
                    self.keep(entry, None, as_result(error));
                    break;
                }
            }
        }
        calls
    }
}

struct Send<'call> {
    eps: &'call mut [Mmep],
    msgs: &'call mut [libc::mmsghdr],
    rooms: &'call mut [Room],
    flags: i32,
}

impl Send<'_> {
    fn keep(&mut self, entry: usize, result: i32) -> bool {
        let (ep, room) = (&mut self.eps[entry], &mut self.rooms[entry]);
        if result < 0 {
            // As sendmmsg(2): an error after messages that went is told by the next call, if
            // it lasts.
            ep.num = if room.done == 0 { result } else { room.done as i32 };
            return false;
        }
        let message = &mut self.msgs[room.next()];
        message.msg_len = result as u32;
        room.done += 1;
        // As sendmmsg(2): nothing follows a message of which a part went.
        let ended = room.left() == 0 || is_short(&message.msg_hdr, result as usize);
        ep.num = if ended { room.done as i32 } else { ep.num };
        !ended
    }
}

/// Whether a message that went has more bytes than that.
fn is_short(header: &libc::msghdr, sent: usize) -> bool {
    // The field has another type where the C library is musl.
    #[allow(clippy::unnecessary_cast)]
    let count = header.msg_iovlen as usize;
    if count == 0 {
        return false;
    }
    // SAFETY: the kernel has just read this vector, and the caller lends it for the whole call.
    let pieces = unsafe { std::slice::from_raw_parts(header.msg_iov, count) };
    sent < pieces.iter().map(|piece| piece.iov_len).sum()
}

impl Work for Send<'_> {
    fn eps(&self) -> &[Mmep] {
        self.eps
    }

    fn rooms(&self) -> &[Room] {
        self.rooms
    }

    /// One call each, or one submission for each message of the longest.
    fn pays_as_submission(&self, active: &[u32], _round: usize) -> bool {
        let longest = active.iter().map(|&entry| self.rooms[entry as usize].left()).max();
        longest.unwrap_or(0) < active.len()
    }

    fn request(&mut self, entry: u32) -> squeue::Entry {
        let (ep, room) = (&self.eps[entry as usize], &self.rooms[entry as usize]);
        let header = &raw const self.msgs[room.next()].msg_hdr;
        opcode::SendMsg::new(types::Fd(ep.sockfd), header)
            .flags(self.flags as u32)
            .build()
            .user_data(u64::from(entry))
    }

    fn completed(&mut self, data: u64, result: i32) -> bool {
        let entry = data as usize;
        self.keep(entry, as_from_a_call(self.eps[entry].sockfd, result))
    }

    fn call(&mut self, entry: u32) -> u64 {
        let entry = entry as usize;
        let fd = self.eps[entry].sockfd;
        if self.rooms[entry].left() == 1 {
            let header = &raw const self.msgs[self.rooms[entry].next()].msg_hdr;
            // SAFETY: the header is one of ours, and the caller answers for what it points to.
            let sent = unsafe { message::send_message(fd, header, self.flags) };
            self.keep(entry, as_result(sent));
            return 1;
        }
        let mut calls = 0;
        while self.rooms[entry].left() > 0 {
            let (place, left) = (self.rooms[entry].next(), self.rooms[entry].left());
            calls += 1;
            // SAFETY: `left` headers from `place` on are ours; the caller answers for what
            // they point to.
            let sent = unsafe { message::send_messages(fd, &raw mut self.msgs[place], left, self.flags) };
            match sent {
                Ok(count) if count > 0 => {
                    self.rooms[entry].done += count as u32;
                    self.eps[entry].num = self.rooms[entry].done as i32;
                    if count < left.min(message::MESSAGES_MAX) {
                        break;
                    }
                }
                sent => {
                    self.keep(entry, as_result(sent).min(-1));
                    break;
                }
            }
        }
        calls
    }
}

/// The result that a system call would have had: it looks at the descriptor before it looks at
/// the message, and a request does that afterwards.
#[inline]
fn as_from_a_call(fd: i32, result: i32) -> i32 {
    if result < 0 && [-libc::EFAULT, -libc::EMSGSIZE, -libc::EINVAL].contains(&result) {
        if let Some(errno) = message::protocol(fd).err().and_then(|error| error.raw_os_error()) {
            return -errno;
        }
    }
    result
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
