//! Writes: each queue in one call, and what did not fit when there is room.

use std::io::{self, IoSlice};

use sys::file::Place;

use super::{Epoll, errno, interest, is_held, reads};
use crate::core::Core;
use crate::engine::Done;
use crate::source::Shape;
use crate::write::{Destination, Fresh, NextWrites, PARTS_MAX};

/// What one send came to.
enum Sent {
    /// The count or a negative errno, and whether room ran out.
    Settled(i32, bool),
    /// Nothing was taken for want of room.
    NoRoom,
}

impl Epoll {
    pub(super) fn write_queued(&mut self, core: &mut Core, index: u32) {
        match core.next_writes(index) {
            NextWrites::Nothing => {}
            NextWrites::Disconnect(op, how) => {
                let result = self.shut_down(core, index, how);
                core.push_done(Done::plain(op, result));
            }
            NextWrites::Send { .. } => {
                if core.handles.at(index).is_some_and(|entry| entry.write_blocked) {
                    self.hold(core, index);
                    return;
                }
                match send(core, index) {
                    Sent::Settled(result, blocked) => core.settle_writes(index, result, blocked),
                    Sent::NoRoom => self.hold(core, index),
                }
            }
        }
    }

    /// Makes the fresh sends, each in one call.
    pub(super) fn write_fresh(&mut self, core: &mut Core) {
        let mut fresh = std::mem::take(&mut core.fresh);
        for Fresh { handle, data, bell } in fresh.drain(..) {
            if core.fresh_is_urgent(handle).is_none() {
                core.forget_bell(handle, bell);
                continue;
            }
            core.stats.system_calls += 1;
            let fd = core.handles.at(handle).and_then(interest::descriptor_of);
            let sent = match fd {
                Some(fd) => sys::socket::send(fd, data.part()),
                None => Err(io::Error::from_raw_os_error(libc::EBADF)),
            };
            if bell {
                core.settle_bell(handle, sent.is_ok());
                continue;
            }
            match sent {
                Ok(sent) => {
                    let sent = sent.min(i32::MAX as usize);
                    let blocked = sent < data.part().len();
                    core.settle_fresh(handle, data, sent as i32, blocked);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    core.settle_fresh(handle, data, 0, true)
                }
                Err(error) => core.settle_fresh(handle, data, -errno(&error), false),
            }
        }
        // The queue keeps its memory. Nothing was added to it meanwhile.
        core.fresh = fresh;
    }

    /// Keeps the queue until an edge tells of room.
    fn hold(&mut self, core: &mut Core, index: u32) {
        let always_ready = core.handles.at(index).is_some_and(interest::is_always_ready);
        let watched = if always_ready { Err(libc::EAGAIN) } else { self.watch(core, index, true) };
        match watched {
            Ok(()) => core.hold_writes(index),
            Err(error) => core.settle_writes(index, -error, false),
        }
    }

    /// There may be room: sends what was held.
    #[inline]
    pub(super) fn write_held(&mut self, core: &mut Core, index: u32) {
        if !is_held(core, index) {
            return;
        }
        match send(core, index) {
            Sent::Settled(result, blocked) => core.settle_writes(index, result, blocked),
            Sent::NoRoom => self.note_stall(core, index),
        }
    }

    /// A message to an address in the file system waits for room at its receiver, of which
    /// no edge tells: the sender counts as writable all the while (unix(7)). It is tried
    /// again after a while.
    fn note_stall(&mut self, core: &Core, index: u32) {
        let name = core.name_of(index);
        if matches!(core.next_write_target(index).0, Destination::Other(_)) && !self.stalled.contains(&name) {
            self.stalled.push(name);
        }
    }

    /// Tries again to send what stalled.
    pub(super) fn retry_stalled(&mut self, core: &mut Core) {
        for name in std::mem::take(&mut self.stalled) {
            if core.handles.get(name.index, name.generation).is_some() {
                self.write_held(core, name.index);
            }
        }
    }
}

/// Sends the handle's queue, as much of it as one call takes.
fn send(core: &mut Core, index: u32) -> Sent {
    let (result, asked) = loop {
        core.stats.system_calls += 1;
        let (result, asked, place) = send_once(core, index);
        if !reads::must_set_nonblocking(core, index, place, &result) {
            break (result, asked);
        }
    };
    if matches!(result, Ok(sent) if sent == asked && sent <= i32::MAX as usize) {
        return Sent::Settled(asked as i32, false);
    }
    let waits = core.handles.at(index).is_some_and(|entry| !interest::is_always_ready(entry));
    match result {
        Ok(sent) => Sent::Settled(sent.min(i32::MAX as usize) as i32, waits && sent < asked),
        Err(error) if waits && error.raw_os_error() == Some(libc::EAGAIN) => Sent::NoRoom,
        Err(error) => Sent::Settled(-errno(&error), false),
    }
}

/// One call; its result, the bytes it was given, and how it was made.
fn send_once(core: &Core, index: u32) -> (io::Result<usize>, usize, Place) {
    let gone = || Err(io::Error::from_raw_os_error(libc::EBADF));
    let Some(entry) = core.handles.at(index) else {
        return (gone(), 0, Place::Position);
    };
    let Some(fd) = interest::descriptor_of(entry) else {
        return (gone(), 0, Place::Position);
    };
    let mut one: &[u8] = &[];
    let mut count = 0;
    let asked = core.for_each_queued(index, &mut |part| {
        one = part;
        count += 1;
    });
    let (to, offset) = core.next_write_target(index);
    let place = reads::place(entry, offset);
    let result = match entry.shape {
        Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. }
            if count <= 1 && matches!(to, Destination::Peer) =>
        {
            sys::socket::send(fd, one)
        }
        Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. } => {
            with_parts(core, index, |parts| sys::socket::send_message(fd, parts, to.to_address().as_ref()))
        }
        Shape::Pipe { .. } | Shape::File => {
            with_parts(core, index, |parts| sys::file::write(fd, parts, place))
        }
    };
    (result, asked, place)
}

/// Calls `f` with the queued parts. Kept apart, since only few sends need the space.
#[inline(never)]
fn with_parts<T>(core: &Core, index: u32, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
    let mut parts = [IoSlice::new(&[]); PARTS_MAX];
    let mut count = 0;
    core.for_each_queued(index, &mut |part| {
        parts[count] = IoSlice::new(part);
        count += 1;
    });
    f(&parts[..count])
}
