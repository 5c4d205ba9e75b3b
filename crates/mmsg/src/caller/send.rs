//! The sending call: one message of an entry, or the rest of it.

use sys::message;
use sys::uring::{opcode, squeue, types};

use super::{Work, as_from_a_call, as_result};
use crate::Mmep;
use crate::rooms::Room;

/// With fewer sockets than this a system call each takes less CPU time than a submission.
const SUBMISSION_LEAST: usize = 16;

pub(super) struct Send<'call> {
    pub(super) eps: &'call mut [Mmep],
    pub(super) msgs: &'call mut [libc::mmsghdr],
    pub(super) rooms: &'call mut [Room],
    pub(super) flags: i32,
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
        active.len() >= SUBMISSION_LEAST && longest.unwrap_or(0) < active.len()
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
