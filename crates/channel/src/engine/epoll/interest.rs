//! What the engine knows of a handle's readiness: eight flags and the first waiting
//! operation, in `HandleEntry::engine_word`.

use std::os::fd::{AsFd, BorrowedFd};

use sys::epoll::{EDGES, ERROR, HANG_UP, IN, OUT, PEER_ENDED, URGENT};

use super::{Epoll, errno};
use crate::core::{Core, File, HandleEntry, WriteState};
use crate::id::{Handle, OpId};
use crate::lwsocket::LwFile;
use crate::op_list::NO_OP;
use crate::source::Shape;

/// In the epoll set.
const REGISTERED: u32 = 1;
/// In the epoll set for writing too.
const REGISTERED_OUT: u32 = 1 << 1;
/// Reading or accepting may give something.
const READABLE: u32 = 1 << 2;
/// Nothing but EAGAIN says that all was read: the stream ends, failed, or has urgent data.
const EXHAUST: u32 = 1 << 3;
/// In `Epoll::ready`.
const READY: u32 = 1 << 4;
/// The upper bits name the first of the accepts and connects that wait.
const WAITING: u32 = 1 << 5;
/// O_NONBLOCK was seen to: on a listener, or on a file that cannot do without.
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
pub(super) fn descriptor(core: &Core, index: u32) -> Option<BorrowedFd<'_>> {
    descriptor_of(core.handles.at(index)?)
}

#[inline]
pub(super) fn descriptor_of(entry: &HandleEntry) -> Option<BorrowedFd<'_>> {
    match &entry.file {
        File::Fd(fd) | File::Lw(LwFile::Private(fd)) => Some(fd.as_fd()),
        File::Lw(LwFile::Direct(_) | LwFile::Taken) | File::None => None,
    }
}

/// Whether reading may give something.
#[inline]
pub(super) fn can_read(entry: &HandleEntry) -> bool {
    entry.engine_word & (READABLE | ALWAYS_READY) != 0 || entry.shape == Shape::File
}

/// Whether the file never becomes ready because it always is.
pub(super) fn is_always_ready(entry: &HandleEntry) -> bool {
    entry.engine_word & ALWAYS_READY != 0 || entry.shape == Shape::File
}

/// Whether calls on the file return EAGAIN of themselves instead of waiting.
pub(super) fn is_nonblocking(entry: &HandleEntry) -> bool {
    entry.engine_word & (NONBLOCKING | ALWAYS_READY) != 0 || entry.shape == Shape::Pipe { nonblocking: true }
}

/// Takes note of what an edge says; `None` if its handle is gone.
#[inline]
pub(super) fn note_edge(core: &mut Core, handle: Handle, readiness: u32) -> Option<Edge> {
    let entry = core.handles.get_mut(handle.index, handle.generation)?;
    if readiness & (IN | URGENT | PEER_ENDED | ERROR | HANG_UP) != 0 {
        entry.engine_word |= READABLE;
    }
    if readiness & (URGENT | PEER_ENDED | ERROR | HANG_UP) != 0 {
        entry.engine_word |= EXHAUST;
    }
    let writable = readiness & (OUT | ERROR | HANG_UP) != 0;
    if writable && entry.write_state != WriteState::Held {
        entry.write_blocked = false;
    }
    Some(Edge { writable, has_waiters: entry.engine_word & WAITING != 0 })
}

/// A read gave `len` of the `asked` bytes. On TCP, less than asked means that there was no
/// more, and the next edge tells when there is (epoll(7), question 9). Other streams stop
/// short of what they have: unix(7) between messages with descriptors or other credentials.
#[inline]
pub(super) fn note_read(core: &mut Core, index: u32, len: usize, asked: usize) {
    if let Some(entry) = core.handles.at_mut(index)
        && entry.shape == (Shape::Stream { tcp: true })
        && len < asked
        && entry.engine_word & EXHAUST == 0
    {
        entry.engine_word &= !READABLE;
    }
}

/// A call gave EAGAIN.
#[inline]
pub(super) fn note_exhausted(core: &mut Core, index: u32) {
    if let Some(entry) = core.handles.at_mut(index) {
        entry.engine_word &= !READABLE;
    }
}

/// Sees to O_NONBLOCK of a listener, once. As nothing is known of its queue then, accepting
/// is to be tried.
///
/// The flag stays, as other channels may accept from the same open file.
pub(super) fn prepare_listener(core: &mut Core, index: u32) {
    let Some(entry) = core.handles.at_mut(index) else {
        return;
    };
    if entry.engine_word & NONBLOCKING != 0 {
        return;
    }
    entry.engine_word |= NONBLOCKING | READABLE;
    core.stats.system_calls += 2;
    // Only a closed descriptor could fail here, and accept4 then says so.
    let _ = descriptor(core, index).map(|fd| sys::file::set_nonblocking(fd, true));
}

/// Sets O_NONBLOCK on a file that has no other way not to wait, until it is closed or
/// handed back.
pub(super) fn set_nonblocking(core: &mut Core, index: u32) -> std::io::Result<()> {
    core.stats.system_calls += 2;
    if let Some(fd) = descriptor(core, index) {
        sys::file::set_nonblocking(fd, true)?;
    }
    if let Some(entry) = core.handles.at_mut(index) {
        entry.engine_word |= NONBLOCKING;
    }
    Ok(())
}

/// Undoes `set_nonblocking`.
#[inline]
pub(super) fn restore_mode(core: &mut Core, index: u32) {
    let Some(entry) = core.handles.at_mut(index) else {
        return;
    };
    if matches!(entry.shape, Shape::Pipe { .. }) && entry.engine_word & NONBLOCKING != 0 {
        entry.engine_word &= !NONBLOCKING;
        let _ = descriptor(core, index).map(|fd| sys::file::set_nonblocking(fd, false));
    }
}

/// Takes a handle from the ready list into account; false if it is gone.
#[inline]
pub(super) fn leave_ready(core: &mut Core, handle: Handle) -> bool {
    match core.handles.get_mut(handle.index, handle.generation) {
        Some(entry) => {
            entry.engine_word &= !READY;
            true
        }
        None => false,
    }
}

/// The first of the accepts and connects that wait.
#[inline]
pub(super) fn first_waiter(core: &Core, index: u32) -> Option<u32> {
    let word = core.handles.at(index)?.engine_word;
    (word & WAITING != 0).then_some(word >> WAITER_SHIFT)
}

fn set_first_waiter(core: &mut Core, index: u32, op: u32) {
    if let Some(entry) = core.handles.at_mut(index) {
        let flags = entry.engine_word & ((1 << WAITER_SHIFT) - 1) & !WAITING;
        entry.engine_word = if op == NO_OP { flags } else { flags | WAITING | op << WAITER_SHIFT };
    }
}

/// Whether the handle has one waiter at most: of a listener's accepts the core starts one at
/// a time, and keeps the others in line by `Op::next`.
fn waits_alone(core: &Core, index: u32) -> bool {
    core.handles.at(index).is_some_and(|entry| entry.shape.is_listener())
}

/// Puts an accept or connect behind those that wait.
pub(super) fn append_waiter(core: &mut Core, index: u32, op: OpId) {
    if waits_alone(core, index) {
        return set_first_waiter(core, index, op.index);
    }
    if let Some(entry) = core.op_mut(op) {
        entry.next = NO_OP;
    }
    let Some(mut at) = first_waiter(core, index) else {
        return set_first_waiter(core, index, op.index);
    };
    while let Some(next) = core.ops.at(at).map(|entry| entry.next).filter(|&next| next != NO_OP) {
        at = next;
    }
    if let Some(last) = core.ops.at_mut(at) {
        last.next = op.index;
    }
}

/// Takes an accept or connect out of those that wait.
pub(super) fn unlink_waiter(core: &mut Core, index: u32, op: u32) {
    if waits_alone(core, index) {
        if first_waiter(core, index) == Some(op) {
            set_first_waiter(core, index, NO_OP);
        }
        return;
    }
    let mut before = NO_OP;
    let mut at = first_waiter(core, index).unwrap_or(NO_OP);
    while at != NO_OP && at != op {
        before = at;
        at = core.ops.at(at).map_or(NO_OP, |entry| entry.next);
    }
    let Some(entry) = core.ops.at_mut(at) else {
        return;
    };
    let next = std::mem::replace(&mut entry.next, NO_OP);
    if before == NO_OP {
        set_first_waiter(core, index, next);
    } else if let Some(entry) = core.ops.at_mut(before) {
        entry.next = next;
    }
}

impl Epoll {
    /// Has the handle's edges reported, those of room for writing too if `out`; the
    /// present state counts as one. A file that is always ready is marked so instead.
    ///
    /// # Errors
    ///
    /// The errno of epoll_ctl(2).
    pub(super) fn watch(&mut self, core: &mut Core, index: u32, out: bool) -> Result<(), i32> {
        let name = core.name_of(index);
        let Some(entry) = core.handles.at_mut(index) else {
            return Err(libc::ECANCELED);
        };
        let word = entry.engine_word;
        if is_always_ready(entry) || (word & REGISTERED != 0 && (!out || word & REGISTERED_OUT != 0)) {
            return Ok(());
        }
        let Some(fd) = descriptor_of(entry) else {
            return Err(libc::ECANCELED);
        };
        let interest = IN | URGENT | PEER_ENDED | EDGES | if out { OUT } else { 0 };
        let outcome = if word & REGISTERED == 0 {
            self.set.add(fd, interest, name.to_bits())
        } else {
            self.set.modify(fd, interest, name.to_bits())
        };
        core.stats.system_calls += 1;
        match outcome {
            Ok(()) => entry.engine_word |= REGISTERED | if out { REGISTERED_OUT } else { 0 },
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => entry.engine_word |= ALWAYS_READY,
            Err(error) => return Err(errno(&error)),
        }
        Ok(())
    }

    /// Has no edge of the handle reported any more.
    pub(super) fn unwatch(&mut self, core: &mut Core, index: u32) {
        let Some(entry) = core.handles.at_mut(index) else {
            return;
        };
        if entry.engine_word & REGISTERED == 0 {
            return;
        }
        entry.engine_word &= !(REGISTERED | REGISTERED_OUT);
        core.stats.system_calls += 1;
        // It can only fail for a descriptor that is not in the set.
        let _ = descriptor(core, index).map(|fd| self.set.remove(fd));
    }

    /// Has the handle go on in the next turn, without sleeping before.
    pub(super) fn continue_later(&mut self, core: &mut Core, index: u32) {
        let name = core.name_of(index);
        if let Some(entry) = core.handles.at_mut(index)
            && entry.engine_word & READY == 0
        {
            entry.engine_word |= READY;
            self.ready.push_back(name);
        }
    }
}
