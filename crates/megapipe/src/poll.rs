//! Polls: readiness of descriptors that stay the caller's.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::channel::Channel;
use crate::completion::{Completion, Event};
use crate::core::{Core, Op, OpKind, outcome};
use crate::engine::Done;
use crate::error::SubmitError;
use crate::id::{Handle, OpId};
use crate::readiness::{Poll, Readiness};

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
    /// which it was found: a program that shares the descriptor sets O_NONBLOCK and expects EAGAIN.
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
    /// for a descriptor that is closed already, and EINVAL for a disk file of which neither reads nor
    /// writes are asked. ECANCELED after a cancel.
    pub fn poll(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Readiness,
        cookie: u64,
    ) -> Result<OpId, SubmitError> {
        let through_set = interest.contains(Readiness::PRIORITY);
        let poll = Poll { fd: fd.as_raw_fd(), interest, through_set, cookie };
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
        if matches!(result, Ok(ready) if ready == Readiness::default()) {
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
