//! Readiness of descriptors that stay the caller's.

use std::fmt;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use sys::epoll::{ERROR, HANG_UP, IN, OUT, PEER_ENDED, URGENT};

use crate::channel::Channel;
use crate::completion::{Completion, Event};
use crate::core::{Core, Op, OpKind, outcome};
use crate::engine::Done;
use crate::error::SubmitError;
use crate::id::{Handle, OpId};

/// What a descriptor is ready for, a set; the bits are those of poll(2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Readiness(u16);

impl Readiness {
    /// A read, or an accept, does not wait (POLLIN).
    pub const READABLE: Readiness = Readiness(IN as u16);
    /// Urgent data of TCP, and what else poll(2) lists (POLLPRI).
    pub const PRIORITY: Readiness = Readiness(URGENT as u16);
    /// A write of some bytes does not wait (POLLOUT).
    pub const WRITABLE: Readiness = Readiness(OUT as u16);
    /// The peer of a stream socket will send no more (POLLRDHUP).
    pub const READ_HANG_UP: Readiness = Readiness(PEER_ENDED as u16);
    /// An error, or that a pipe has no reader (POLLERR); reported unasked.
    pub const ERROR: Readiness = Readiness(ERROR as u16);
    /// The stream has ended in both directions (POLLHUP); reported unasked.
    pub const HANG_UP: Readiness = Readiness(HANG_UP as u16);

    /// What a poll may ask for.
    const ASKABLE: u16 =
        Self::READABLE.0 | Self::PRIORITY.0 | Self::WRITABLE.0 | Self::READ_HANG_UP.0 | Self::UNASKED;
    const UNASKED: u16 = Self::ERROR.0 | Self::HANG_UP.0;

    /// The bits, as poll(2) has them.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set of these bits; those that are no constant's have no effect and are not reported.
    pub const fn from_bits(bits: u16) -> Readiness {
        Readiness(bits & Self::ASKABLE)
    }

    /// Whether it has all of `other`.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has any of `other`.
    pub const fn intersects(self, other: Readiness) -> bool {
        self.0 & other.0 != 0
    }

    /// As a poll that asks for this reports it.
    pub(crate) fn reported(self) -> u32 {
        (self.0 | Self::UNASKED).into()
    }

    /// What a poll that asks for this reports of what the kernel found.
    fn found(self, bits: u32) -> Readiness {
        Readiness((bits & self.reported()) as u16)
    }
}

impl BitOr for Readiness {
    type Output = Readiness;

    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Readiness, &str); 6] = [
            (Readiness::READABLE, "READABLE"),
            (Readiness::PRIORITY, "PRIORITY"),
            (Readiness::WRITABLE, "WRITABLE"),
            (Readiness::READ_HANG_UP, "READ_HANG_UP"),
            (Readiness::ERROR, "ERROR"),
            (Readiness::HANG_UP, "HANG_UP"),
        ];
        let names: Vec<_> =
            NAMES.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| *name).collect();
        write!(f, "Readiness({})", names.join(" | "))
    }
}

/// A poll that is pending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poll {
    pub(crate) fd: RawFd,
    pub(crate) interest: Readiness,
    /// io_uring ends a poll of a stream whose peer has ended it, whatever is asked for
    /// (IO_POLL_UNMASK). One that did not ask for it goes on in an epoll set.
    pub(crate) through_set: bool,
    cookie: u64,
}

impl Channel {
    /// Completes once, when `fd` is ready for some of `interest` or has an error or hang-up
    /// (poll(2)), with `cookie` and no handle: at the next dispatch if it is ready already. For
    /// descriptors that a library or an event loop reads and writes itself, so that one dispatch
    /// waits for all.
    ///
    /// A poll happens once and checks the state when it starts, as port_associate(3C) of Solaris has
    /// it: every kind of event loop can be made of that, in one request of the batch a wait. After
    /// each completion polling again gives the levels of poll(2) and libevent; polling again only
    /// after EAGAIN gives edges, of which none is lost; and a descriptor that is not polled costs
    /// nothing and reports nothing. Standing polls would need a call to change them, and hand out
    /// events that their user no longer wants.
    ///
    /// Any descriptor will do: sockets, listeners and those of handles included, pipes, terminals,
    /// eventfd, timerfd, signalfd, inotify, epoll. A disk file is always readable and writable.
    /// Several polls of one descriptor are independent of each other: one for reads and one for
    /// writes, say. To change a poll, cancel it and poll anew.
    ///
    /// Nothing is read or written and O_NONBLOCK is not touched. Readiness is of the moment at
    /// which it was found: who shares the descriptor sets O_NONBLOCK and is content with EAGAIN.
    ///
    /// [`Self::cancel`] a poll before its descriptor is closed. Otherwise it may never complete, or
    /// report what another file is ready for that has got the number; and on io_uring, where a poll
    /// holds the file, the peer sees no end of it before the poll has ended. For the same reason
    /// the peer of a file that is closed right after the cancel sees the end with the next batch;
    /// [`Self::flush`] in between hands the cancel over at once.
    ///
    /// # Errors
    ///
    /// [`SubmitError::OperationsFull`]. What the kernel refuses is an [`Event::Poll`], as EBADF is
    /// for a descriptor that is closed already. ECANCELED after a cancel.
    pub fn poll(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Readiness,
        cookie: u64,
    ) -> Result<OpId, SubmitError> {
        let poll = Poll { fd: fd.as_raw_fd(), interest, through_set: false, cookie };
        let op = self.core.add_own_op(OpKind::Poll(poll))?;
        self.core.request_start(op);
        self.flush_if_due();
        Ok(op)
    }
}

impl Core {
    pub(crate) fn settle_poll(&mut self, done: &Done) -> Option<Completion> {
        let op = self.op_mut(done.op)?;
        let OpKind::Poll(poll) = &mut op.kind else { return None };
        let (cookie, interest) = (poll.cookie, poll.interest);
        let result = outcome(done.result).map(|bits| interest.found(bits as u32));
        if matches!(result, Ok(Readiness(0))) {
            poll.through_set = true;
            if !op.cancelled {
                self.request_start(done.op);
            }
            return None;
        }
        self.ops.remove(done.op.index);
        self.stats.completions += 1;
        Some(Completion { handle: Handle::NONE, cookie, op: done.op, event: Event::Poll(result) })
    }

    /// The polls that the engine has.
    pub(crate) fn polls(&self) -> Vec<OpId> {
        let is_poll = |op: &Op| op.started && matches!(op.kind, OpKind::Poll(_));
        let indices = self.ops.indices().into_iter();
        indices
            .filter(|&index| self.ops.at(index).is_some_and(is_poll))
            .map(|index| self.op_id(index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_poll() {
        let all = [
            (Readiness::READABLE, libc::POLLIN),
            (Readiness::PRIORITY, libc::POLLPRI),
            (Readiness::WRITABLE, libc::POLLOUT),
            (Readiness::READ_HANG_UP, libc::POLLRDHUP),
            (Readiness::ERROR, libc::POLLERR),
            (Readiness::HANG_UP, libc::POLLHUP),
        ];
        for (ours, theirs) in all {
            assert_eq!(ours.bits(), theirs as u16);
        }
        assert_eq!(
            Readiness::from_bits(u16::MAX).bits(),
            all.iter().fold(0, |bits, (_, bit)| bits | *bit as u16)
        );
        assert_eq!(
            format!("{:?}", Readiness::READABLE | Readiness::HANG_UP),
            "Readiness(READABLE | HANG_UP)"
        );
    }
}
