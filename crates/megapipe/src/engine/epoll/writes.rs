//! Writes: each queue in one call, and the remainder when there is room.

use std::io::{self, IoSlice};

use sys::file::Place;

use super::{Epoll, errno, interest, is_held, reads};
use crate::engine::Done;
use crate::engine::view::{FileView, View};
use crate::source::Shape;
use crate::write::{Destination, NextWrites, PARTS_MAX};

/// The result of one send.
enum Sent {
    /// The count or a negative errno, and whether room ran out.
    Settled(i32, bool),
    /// Nothing was accepted for want of room.
    NoRoom,
}

impl Epoll {
    pub(super) fn write_queued(&mut self, view: &mut View<'_>, index: u32) {
        match view.next_writes(index) {
            NextWrites::Nothing => {}
            NextWrites::Disconnect(op, how) => {
                let result = self.shut_down(view, index, how);
                view.push_done(Done::plain(op, result));
            }
            NextWrites::Send { .. } => {
                if view.file(index).is_some_and(FileView::is_write_blocked) {
                    self.hold(view, index);
                    return;
                }
                match send(view, index) {
                    Sent::Settled(result, blocked) => view.report_write(index, result, blocked),
                    Sent::NoRoom => self.hold(view, index),
                }
            }
        }
    }

    /// Makes the fresh sends, each in one call.
    pub(super) fn write_fresh(&mut self, view: &mut View<'_>) {
        while let Some((fresh, _)) = view.next_fresh() {
            view.count_calls(1);
            let sent = match interest::descriptor(view, fresh.handle) {
                Some(fd) => sys::socket::send(fd, fresh.data.part()),
                None => Err(io::Error::from_raw_os_error(libc::EBADF)),
            };
            match sent {
                Ok(sent) => {
                    let sent = sent.min(i32::MAX as usize);
                    let blocked = sent < fresh.data.part().len();
                    view.report_fresh(fresh, sent as i32, blocked);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => view.report_fresh(fresh, 0, true),
                Err(error) => view.report_fresh(fresh, -errno(&error), false),
            }
        }
    }

    /// Keeps the queue until an edge reports room.
    fn hold(&mut self, view: &mut View<'_>, index: u32) {
        let always_ready = view.file(index).is_some_and(interest::is_always_ready);
        let watched = if always_ready { Err(libc::EAGAIN) } else { self.watch_file(view, index, true) };
        match watched {
            Ok(()) => {
                view.block_writes(index);
                view.hold_writes(index);
            }
            Err(error) => view.report_write(index, -error, false),
        }
    }

    /// There may be room: sends what was held.
    #[inline]
    pub(super) fn write_held(&mut self, view: &mut View<'_>, index: u32) {
        if !is_held(view, index) {
            return;
        }
        match send(view, index) {
            Sent::Settled(result, blocked) => view.report_write(index, result, blocked),
            Sent::NoRoom => self.note_stall(view, index),
        }
    }

    /// A message to an address in the file system waits for room at its receiver, which
    /// no edge reports: the sender counts as writable all the while (unix(7)). It is
    /// tried again after a while.
    fn note_stall(&mut self, view: &View<'_>, index: u32) {
        let name = view.name_of(index);
        if matches!(view.next_write_target(index).0, Destination::Other(_)) && !self.stalled.contains(&name) {
            self.stalled.push(name);
        }
    }

    /// Tries again to send what stalled.
    pub(super) fn retry_stalled(&mut self, view: &mut View<'_>) {
        for name in std::mem::take(&mut self.stalled) {
            if view.is_live(name) {
                self.write_held(view, name.index);
            }
        }
    }
}

/// Sends the handle's queue, as much of it as one call takes.
fn send(view: &mut View<'_>, index: u32) -> Sent {
    let (result, asked) = loop {
        view.count_calls(1);
        let (result, asked, place) = send_once(view, index);
        if !reads::must_set_nonblocking(view, index, place, &result) {
            break (result, asked);
        }
    };
    if matches!(result, Ok(sent) if sent == asked && sent <= i32::MAX as usize) {
        return Sent::Settled(asked as i32, false);
    }
    let waits = view.file(index).is_some_and(|file| !interest::is_always_ready(file));
    match result {
        Ok(sent) => Sent::Settled(sent.min(i32::MAX as usize) as i32, waits && sent < asked),
        Err(error) if waits && error.raw_os_error() == Some(libc::EAGAIN) => Sent::NoRoom,
        Err(error) => Sent::Settled(-errno(&error), false),
    }
}

/// One call; its result, the bytes it was given, and how it was made.
fn send_once(view: &View<'_>, index: u32) -> (io::Result<usize>, usize, Place) {
    let gone = || Err(io::Error::from_raw_os_error(libc::EBADF));
    let Some(file) = view.file(index) else {
        return (gone(), 0, Place::Position);
    };
    let Some(fd) = file.descriptor() else {
        return (gone(), 0, Place::Position);
    };
    let mut one: &[u8] = &[];
    let mut count = 0;
    let asked = view.for_each_queued(index, &mut |part| {
        one = part;
        count += 1;
    });
    let (to, offset) = view.next_write_target(index);
    let place = reads::place(file, offset);
    let result = match file.shape() {
        Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. }
            if count <= 1 && matches!(to, Destination::Peer) =>
        {
            sys::socket::send(fd, one)
        }
        Shape::Stream { .. } | Shape::Listener { .. } | Shape::Datagram { .. } => {
            with_parts(view, index, |parts| sys::socket::send_message(fd, parts, to.to_address().as_ref()))
        }
        Shape::Pipe { .. } | Shape::File => {
            with_parts(view, index, |parts| sys::file::write(fd, parts, place))
        }
    };
    (result, asked, place)
}

/// Calls `f` with the queued parts. Kept apart, since only few sends need the space.
#[inline(never)]
fn with_parts<T>(view: &View<'_>, index: u32, f: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
    let mut parts = [IoSlice::new(&[]); PARTS_MAX];
    let mut count = 0;
    view.for_each_queued(index, &mut |part| {
        parts[count] = IoSlice::new(part);
        count += 1;
    });
    f(&parts[..count])
}
