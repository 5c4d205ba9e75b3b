//! A handle's readiness: eight flags and the first waiting operation, in
//! `HandleEntry::engine_word`.

use std::os::fd::BorrowedFd;

use sys::epoll::{EDGES, ERROR, HANG_UP, IN, OUT, PEER_ENDED, URGENT};

use super::{Epoll, errno};
use crate::engine::view::{FileView, View};
use crate::id::{Handle, OpId};
use crate::source::Shape;

/// In the epoll set.
const REGISTERED: u32 = 1;
/// In the epoll set for writing too.
const REGISTERED_OUT: u32 = 1 << 1;
/// Reading or accepting may return something.
const READABLE: u32 = 1 << 2;
/// Only EAGAIN means that all was read: the stream ends, failed, or has urgent data.
const EXHAUST: u32 = 1 << 3;
/// In `Epoll::ready`.
const READY: u32 = 1 << 4;
/// The upper bits name the first of the accepts and connects that wait.
const WAITING: u32 = 1 << 5;
/// O_NONBLOCK was set: on a listener, or on a file that cannot do without.
const NONBLOCKING: u32 = 1 << 6;
/// epoll has no use for the file: it is always ready.
const ALWAYS_READY: u32 = 1 << 7;

/// `Config::operations_max` is at most 2^24, so an operation's index fits above the flags.
const WAITER_SHIFT: u32 = 8;

/// What an edge leads to.
pub(super) struct Edge {
    pub(super) writable: bool,
    pub(super) has_waiters: bool,
}

/// The handle's descriptor; `None` once it was closed or handed back.
#[inline]
pub(super) fn descriptor<'a>(view: &'a View<'_>, index: u32) -> Option<BorrowedFd<'a>> {
    view.file(index)?.descriptor()
}

/// Whether reading may return something.
#[inline]
pub(super) fn can_read(file: FileView<'_>) -> bool {
    file.word() & (READABLE | ALWAYS_READY) != 0 || file.shape() == Shape::File
}

/// Whether the file never becomes ready because it always is.
pub(super) fn is_always_ready(file: FileView<'_>) -> bool {
    file.word() & ALWAYS_READY != 0 || file.shape() == Shape::File
}

/// Whether calls on the file return EAGAIN of themselves instead of waiting.
pub(super) fn is_nonblocking(file: FileView<'_>) -> bool {
    file.word() & (NONBLOCKING | ALWAYS_READY) != 0 || file.shape() == Shape::Pipe { nonblocking: true }
}

/// Records an edge; `None` if its handle is gone.
#[inline]
pub(super) fn note_edge(view: &mut View<'_>, handle: Handle, readiness: u32) -> Option<Edge> {
    if !view.is_live(handle) {
        return None;
    }
    let word = view.word_mut(handle.index)?;
    if readiness & (IN | URGENT | PEER_ENDED | ERROR | HANG_UP) != 0 {
        *word |= READABLE;
    }
    if readiness & (URGENT | PEER_ENDED | ERROR | HANG_UP) != 0 {
        *word |= EXHAUST;
    }
    let has_waiters = *word & WAITING != 0;
    let writable = readiness & (OUT | ERROR | HANG_UP) != 0;
    if writable && !view.file(handle.index)?.is_write_held() {
        view.unblock_writes(handle.index);
    }
    Some(Edge { writable, has_waiters })
}

/// A read returned `len` of the `asked` bytes. On TCP, less than asked means that there
/// was no more, and the next edge comes when there is (epoll(7), question 9). Other
/// streams stop short of what they have: unix(7) between messages with descriptors or
/// other credentials.
#[inline]
pub(super) fn note_read(view: &mut View<'_>, index: u32, len: usize, asked: usize) {
    let Some(file) = view.file(index) else { return };
    if file.shape() == (Shape::Stream { tcp: true }) && len < asked && file.word() & EXHAUST == 0 {
        note_exhausted(view, index);
    }
}

/// A call returned EAGAIN.
#[inline]
pub(super) fn note_exhausted(view: &mut View<'_>, index: u32) {
    if let Some(word) = view.word_mut(index) {
        *word &= !READABLE;
    }
}

/// Sets O_NONBLOCK of a listener, once. The state of its queue is unknown then: accepting
/// is to be tried.
///
/// The flag stays, as other channels may accept from the same open file.
pub(super) fn prepare_listener(view: &mut View<'_>, index: u32) {
    let Some(word) = view.word_mut(index) else {
        return;
    };
    if *word & NONBLOCKING != 0 {
        return;
    }
    *word |= NONBLOCKING | READABLE;
    view.count_calls(2);
    // Only a closed descriptor could fail here, and accept4 then says so.
    let _ = descriptor(view, index).map(|fd| sys::file::set_nonblocking(fd, true));
}

/// Sets O_NONBLOCK on a file that has no other way not to wait, until it is closed or
/// handed back.
pub(super) fn set_nonblocking(view: &mut View<'_>, index: u32) -> std::io::Result<()> {
    view.count_calls(2);
    if let Some(fd) = descriptor(view, index) {
        sys::file::set_nonblocking(fd, true)?;
    }
    if let Some(word) = view.word_mut(index) {
        *word |= NONBLOCKING;
    }
    Ok(())
}

/// Undoes `set_nonblocking`.
#[inline]
pub(super) fn restore_mode(view: &mut View<'_>, index: u32) {
    let Some(file) = view.file(index) else {
        return;
    };
    if matches!(file.shape(), Shape::Pipe { .. }) && file.word() & NONBLOCKING != 0 {
        let _ = file.descriptor().map(|fd| sys::file::set_nonblocking(fd, false));
        if let Some(word) = view.word_mut(index) {
            *word &= !NONBLOCKING;
        }
    }
}

/// Takes a handle off the ready list; false if it is gone.
#[inline]
pub(super) fn leave_ready(view: &mut View<'_>, handle: Handle) -> bool {
    if !view.is_live(handle) {
        return false;
    }
    if let Some(word) = view.word_mut(handle.index) {
        *word &= !READY;
    }
    true
}

/// The first of the accepts and connects that wait.
#[inline]
pub(super) fn first_waiter(view: &View<'_>, index: u32) -> Option<u32> {
    let word = view.file(index)?.word();
    (word & WAITING != 0).then_some(word >> WAITER_SHIFT)
}

fn set_first_waiter(view: &mut View<'_>, index: u32, op: Option<u32>) {
    if let Some(word) = view.word_mut(index) {
        let flags = *word & ((1 << WAITER_SHIFT) - 1) & !WAITING;
        *word = op.map_or(flags, |op| flags | WAITING | op << WAITER_SHIFT);
    }
}

/// Whether the handle has one waiter at most: of a listener's accepts the core starts one at
/// a time, and keeps the others in line by `Op::next`.
fn waits_alone(view: &View<'_>, index: u32) -> bool {
    view.file(index).is_some_and(|file| file.shape().is_listener())
}

/// Puts an accept or connect behind those that wait.
pub(super) fn append_waiter(view: &mut View<'_>, index: u32, op: OpId) {
    if waits_alone(view, index) {
        return set_first_waiter(view, index, Some(op.index));
    }
    view.set_next(op.index, None);
    let Some(mut last) = first_waiter(view, index) else {
        return set_first_waiter(view, index, Some(op.index));
    };
    while let Some(next) = view.next_of(last) {
        last = next;
    }
    view.set_next(last, Some(op.index));
}

/// Takes an accept or connect out of those that wait.
pub(super) fn unlink_waiter(view: &mut View<'_>, index: u32, op: u32) {
    if waits_alone(view, index) {
        if first_waiter(view, index) == Some(op) {
            set_first_waiter(view, index, None);
        }
        return;
    }
    let mut before = None;
    let mut at = first_waiter(view, index);
    while let Some(waiter) = at
        && waiter != op
    {
        before = at;
        at = view.next_of(waiter);
    }
    if at.is_none() {
        return;
    }
    let next = view.next_of(op);
    view.set_next(op, None);
    match before {
        None => set_first_waiter(view, index, next),
        Some(before) => view.set_next(before, next),
    }
}

impl Epoll {
    /// Has the handle's edges reported, those of room for writing too if `out`; the
    /// present state counts as one. A file that is always ready is marked so instead.
    ///
    /// # Errors
    ///
    /// The errno of epoll_ctl(2).
    pub(super) fn watch_file(&mut self, view: &mut View<'_>, index: u32, out: bool) -> Result<(), i32> {
        let name = view.name_of(index);
        let Some(file) = view.file(index) else {
            return Err(libc::ECANCELED);
        };
        let word = file.word();
        if is_always_ready(file) || (word & REGISTERED != 0 && (!out || word & REGISTERED_OUT != 0)) {
            return Ok(());
        }
        let Some(fd) = file.descriptor() else {
            return Err(libc::ECANCELED);
        };
        let interest = IN | URGENT | PEER_ENDED | EDGES | if out { OUT } else { 0 };
        let outcome = if word & REGISTERED == 0 {
            self.set.add(fd, interest, name.to_bits())
        } else {
            self.set.modify(fd, interest, name.to_bits())
        };
        view.count_calls(1);
        let marks = match outcome {
            Ok(()) => REGISTERED | if out { REGISTERED_OUT } else { 0 },
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => ALWAYS_READY,
            Err(error) => return Err(errno(&error)),
        };
        if let Some(word) = view.word_mut(index) {
            *word |= marks;
        }
        Ok(())
    }

    /// Has no edge of the handle reported any more.
    pub(super) fn unwatch_file(&mut self, view: &mut View<'_>, index: u32) {
        let Some(word) = view.word_mut(index) else {
            return;
        };
        if *word & REGISTERED == 0 {
            return;
        }
        *word &= !(REGISTERED | REGISTERED_OUT);
        view.count_calls(1);
        // It can only fail for a descriptor that is not in the set.
        let _ = descriptor(view, index).map(|fd| self.set.remove(fd));
    }

    /// Has the handle go on in the next turn, without sleeping before.
    pub(super) fn continue_later(&mut self, view: &mut View<'_>, index: u32) {
        let name = view.name_of(index);
        if let Some(word) = view.word_mut(index)
            && *word & READY == 0
        {
            *word |= READY;
            self.ready.push_back(name);
        }
    }
}
