//! The receiving call: one message of an entry, or the rest of it.

use sys::message;
use sys::uring::{opcode, squeue, types};

use super::{Work, as_from_a_call, as_result};
use crate::Mmep;
use crate::batch::SILENT;
use crate::late::Late;
use crate::rooms::Room;

/// Submissions for receiving in one call: a socket that still has messages then has a queue,
/// which recvmmsg(2) empties cheaper.
const RECEIVE_ROUNDS: usize = 2;

/// With fewer sockets than this, recv(2) for each takes less CPU time than a submission: 15 % at 2, 6 % at 4, nothing at 16.
const LIGHT_LEAST: usize = 4;
/// recvmsg(2) for each takes less at any number, a twentieth from here on, for which there are as many times more calls.
const OTHERS_LEAST: usize = 8;

/// In a request's data: it was recv(2), into so many bytes as the bits between tell.
const LIGHT: u64 = 1 << 63;

/// A message longer than this is left to recvmsg(2): its length has to fit into a request's data.
const LIGHT_MAX: usize = (1 << 30) - 1;

pub(super) struct Receive<'call> {
    pub(super) eps: &'call mut [Mmep],
    pub(super) msgs: &'call mut [libc::mmsghdr],
    pub(super) rooms: &'call mut [Room],
    pub(super) late: Late,
    pub(super) flags: i32,
    /// The room for a name and for control messages of each message, as the caller set it; empty until it is needed.
    pub(super) lens: Vec<Lens>,
    /// The call receives one message of each socket, of which a submission may report the length and MSG_TRUNC alone.
    pub(super) tells_cut: bool,
}

/// `msg_namelen` and `msg_controllen`.
pub(super) type Lens = (libc::socklen_t, usize);

impl Receive<'_> {
    /// The piece of a message for which recv(2) gives all that recvmsg(2) would, if it reports that the message was cut
    /// off: it has one piece and wants neither address nor control data.
    #[inline]
    fn light(&self, place: usize) -> Option<(*mut u8, usize)> {
        const OTHER: i32 = libc::MSG_ERRQUEUE | libc::MSG_OOB | libc::MSG_CMSG_CLOEXEC;
        let header = &self.msgs[place].msg_hdr;
        let bare = header.msg_name.is_null() && header.msg_control.is_null() && header.msg_controllen == 0;
        let vector = header.msg_iov;
        if self.flags & OTHER != 0
            || !bare
            || header.msg_iovlen != 1
            || vector.is_null()
            || !vector.is_aligned()
        {
            return None;
        }
        // SAFETY: neither null nor misaligned, and the caller lends vectors of pieces for the call.
        let piece = unsafe { *vector };
        (piece.iov_len <= LIGHT_MAX).then_some((piece.iov_base.cast(), piece.iov_len))
    }

    /// The caller asked for the real length of datagrams, which shows whether they were cut off.
    #[inline]
    fn asks_length(&self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }

    /// Keeps what came of the entry's next message; recv(2) wrote no header, and says so much of the message's flags.
    #[inline(always)]
    fn keep(&mut self, entry: usize, flags: Option<i32>, result: i32) -> bool {
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
        if let Some(flags) = flags {
            message.msg_hdr.msg_flags = flags;
        }
        room.left() > 0 && (result > 0 || !self.can_end(entry))
    }

    /// Whether a message without bytes is the end: of a stream's data, not of its error queue.
    fn can_end(&self, entry: usize) -> bool {
        self.flags & libc::MSG_ERRQUEUE == 0 && message::is_stream(self.eps[entry].sockfd)
    }

    /// recvmmsg(2) reports the end of a stream in each place that it has; one is enough. Where several messages of the last
    /// `count` have no bytes, only the first of these at the end of a stream is kept.
    fn ends_once(&mut self, entry: usize, count: usize) -> usize {
        let first = self.rooms[entry].next();
        let with_bytes = self.msgs[first..first + count].iter().rposition(|message| message.msg_len > 0);
        let kept = with_bytes.map_or(1, |last| last + 2);
        if kept >= count || !self.can_end(entry) {
            return count;
        }
        let others = first + kept..first + count;
        for (message, &(name, control)) in self.msgs[others.clone()].iter_mut().zip(&self.lens[others]) {
            (message.msg_hdr.msg_namelen, message.msg_hdr.msg_controllen) = (name, control as _);
        }
        kept
    }

    fn note_lens(&mut self) {
        if self.lens.is_empty() {
            // The field has another type where the C library is musl.
            #[allow(clippy::unnecessary_cast)]
            let lens = |message: &libc::mmsghdr| {
                (message.msg_hdr.msg_namelen, message.msg_hdr.msg_controllen as usize)
            };
            self.lens.extend(self.msgs.iter().map(lens));
        }
    }

    /// recvmsg(2) refuses such a message with EMSGSIZE, and so do requests, but for those of Linux 6.1: with EINVAL.
    fn has_too_many_pieces(&self, entry: usize) -> bool {
        self.msgs[self.rooms[entry].next()].msg_hdr.msg_iovlen > libc::UIO_MAXIOV as _
    }

    /// recvmmsg(2) tells the error of a stream before its data, and takes it from the socket; recvmsg(2) gives the
    /// data first, and no more than that may be taken before the error. It never tells a reset behind an end (EPIPE): the
    /// end is all that it gives.
    fn receive_before(&mut self, entry: usize, errno: i32) -> u64 {
        let fd = self.eps[entry].sockfd;
        let ended = errno == libc::EPIPE;
        let mut calls = 0;
        while self.rooms[entry].left() > 0 && (ended || message::has_stream_data(fd)) {
            let header = &raw mut self.msgs[self.rooms[entry].next()].msg_hdr;
            calls += 1;
            // SAFETY: the header is one of ours, and the caller answers for what it points to.
            let received = unsafe { message::receive_message(fd, header, self.flags) };
            if !self.keep(entry, None, as_result(received)) {
                break;
            }
        }
        // Unless it was the message's, and is told already.
        if !ended && self.eps[entry].num != -errno {
            self.late.keep(fd, errno);
        }
        calls
    }
}

impl Work for Receive<'_> {
    fn eps(&self) -> &[Mmep] {
        self.eps
    }

    fn rooms(&self) -> &[Room] {
        self.rooms
    }

    /// An error that was kept is the next result, behind what is left of a stream's data.
    fn begin(&mut self, active: &mut Vec<u32>) -> u64 {
        let mut calls = 0;
        // Who asks for what the socket's queue of errors has is not told of others.
        if self.late.is_empty() || self.flags & libc::MSG_ERRQUEUE != 0 {
            return calls;
        }
        active.retain(|&entry| {
            let entry = entry as usize;
            let fd = self.eps[entry].sockfd;
            let Some(errno) = self.late.take(fd) else { return true };
            if message::has_stream_data(fd) {
                calls += self.receive_before(entry, errno);
            } else {
                self.eps[entry].num = -errno;
            }
            false
        });
        calls
    }

    fn pays_as_submission(&self, active: &[u32], round: usize) -> bool {
        let least = if self.asks_length() || self.tells_cut { LIGHT_LEAST } else { OTHERS_LEAST };
        active.len() >= least && round < RECEIVE_ROUNDS
    }

    #[inline]
    fn request(&mut self, entry: u32) -> squeue::Entry {
        let place = self.rooms[entry as usize].next();
        let fd = types::Fd(self.eps[entry as usize].sockfd);
        // A silent request completes if there is less than it asks for, or if the message was cut off.
        let (flags, silence, mark) = match self.asks_length() {
            true => (self.flags, squeue::Flags::empty(), LIGHT),
            false => (self.flags | libc::MSG_WAITALL, squeue::Flags::SKIP_SUCCESS, LIGHT | SILENT),
        };
        match self.light(place).filter(|_| self.asks_length() || self.tells_cut) {
            Some((room, len)) => opcode::Recv::new(fd, room, len as u32)
                .flags(flags)
                .build()
                .flags(silence)
                .user_data(u64::from(entry) | (len as u64) << 32 | mark),
            None => {
                let header = &raw mut self.msgs[place].msg_hdr;
                opcode::RecvMsg::new(fd, header).flags(self.flags as u32).build().user_data(u64::from(entry))
            }
        }
    }

    #[inline(always)]
    fn completed(&mut self, data: u64, result: i32) -> bool {
        let len = (data & !(LIGHT | SILENT)) as usize >> 32;
        let flags = (data & LIGHT != 0).then(|| cut(result, len + usize::from(data & SILENT == 0)));
        let entry = data as u32 as usize;
        let result = if result == -libc::EINVAL && flags.is_none() && self.has_too_many_pieces(entry) {
            -libc::EMSGSIZE
        } else {
            result
        };
        self.keep(entry, flags, as_from_a_call(self.eps[entry].sockfd, result))
    }

    /// The message has as many bytes as there was room, and was not cut off.
    fn unreported(&mut self, entry: u32) {
        if self.tells_cut && self.is_unfinished(entry) {
            let len = self.light(self.rooms[entry as usize].next()).map_or(0, |(_, len)| len);
            self.keep(entry as usize, Some(0), len as i32);
        }
    }

    fn call(&mut self, entry: u32) -> u64 {
        let entry = entry as usize;
        let fd = self.eps[entry].sockfd;
        if self.rooms[entry].left() == 1 {
            let place = self.rooms[entry].next();
            let light = self.light(place).filter(|_| self.asks_length());
            let header = &raw mut self.msgs[place].msg_hdr;
            // SAFETY: the header is one of ours, and the caller answers for what it points to.
            let received = unsafe {
                match light {
                    Some((room, len)) => message::receive(fd, room, len, self.flags),
                    None => message::receive_message(fd, header, self.flags),
                }
            };
            let result = as_result(received);
            self.keep(entry, light.map(|(_, len)| cut(result, len + 1)), result);
            return 1;
        }
        self.note_lens();
        let mut calls = 0;
        while self.rooms[entry].left() > 0 {
            let (place, left) = (self.rooms[entry].next(), self.rooms[entry].left());
            calls += 1;
            // SAFETY: `left` headers from `place` on are ours; the caller answers for what
            // they point to.
            let received =
                unsafe { message::receive_messages(fd, &raw mut self.msgs[place], left, self.flags) };
            match received {
                Ok(received) => {
                    let count = self.ends_once(entry, received);
                    self.rooms[entry].done += count as u32;
                    self.eps[entry].num = self.rooms[entry].done as i32;
                    // Fewer: nothing is left, or there is an error, which the socket keeps.
                    if count < left.min(message::MESSAGES_MAX) {
                        break;
                    }
                }
                Err(error) => {
                    let result = as_result(Err(error));
                    if result == -libc::EPIPE || (result != -libc::EAGAIN && message::has_stream_data(fd)) {
                        calls += self.receive_before(entry, -result);
                    } else {
                        self.keep(entry, None, result);
                    }
                    break;
                }
            }
        }
        calls
    }
}

/// The flags of a message that was cut off if it has so many bytes.
#[inline]
fn cut(result: i32, least: usize) -> i32 {
    if result >= 0 && result as usize >= least { libc::MSG_TRUNC } else { 0 }
}
