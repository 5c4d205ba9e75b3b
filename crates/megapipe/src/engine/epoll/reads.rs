//! Reads: once or again and again, when the handle has something to read.

use std::io;

use sys::file::Place;

use super::{Epoll, calls, errno, interest};
use crate::buffer::{DATAGRAM_OFFSET, ReadData};
use crate::core::OpKind;
use crate::engine::Done;
use crate::engine::view::{FileView, View};
use crate::id::OpId;
use crate::source::Shape;

/// Buffers that one handle may fill in one turn.
const READS_PER_TURN: usize = 16;

/// The result of one read.
enum Outcome {
    /// Nothing yet; an edge will report bytes.
    NotYet,
    /// The count, and the pool buffer that holds the bytes.
    Filled(i32, u16),
    /// End of file, or a negative errno.
    Ended(i32),
}

impl Epoll {
    pub(super) fn start_read(&mut self, view: &mut View<'_>, op: OpId, index: u32) {
        // A new connection waits for its first edge: a first try would mostly find
        // nothing.
        if let Err(error) = self.watch_file(view, index, false) {
            view.push_done(Done::plain(op, -error));
            return;
        }
        self.read_if_ready(view, index);
    }

    /// Carries out the handle's started read as far as there is something to read.
    pub(super) fn read_if_ready(&mut self, view: &mut View<'_>, index: u32) {
        if !view.file(index).is_some_and(interest::can_read) {
            return;
        }
        let Some(op) = view.started_read(index) else {
            return;
        };
        let Some(read) = view.op(op) else {
            return;
        };
        match &read.kind {
            OpKind::ReadStream { once, .. } => {
                let once = *once;
                self.read_on(view, index, op, once);
            }
            OpKind::Read { data: ReadData::None, offset } => {
                let offset = *offset;
                match self.read_to_pool(view, index, offset) {
                    Outcome::NotYet => {}
                    Outcome::Filled(result, buffer) => {
                        view.push_done(Done { op, result, flags: Done::BUFFER, buffer });
                    }
                    Outcome::Ended(result) => view.push_done(Done::plain(op, result)),
                }
            }
            OpKind::Read { .. } => self.read_to_caller(view, index, op),
            _ => {}
        }
    }

    /// A stream of reads: one buffer after the other, until there is no more or the
    /// handle had its share of the turn.
    fn read_on(&mut self, view: &mut View<'_>, index: u32, op: OpId, once: bool) {
        for _ in 0..READS_PER_TURN {
            match self.read_to_pool(view, index, None) {
                Outcome::NotYet => return,
                Outcome::Filled(result, buffer) => {
                    let more = if once { 0 } else { Done::MORE };
                    view.push_done(Done { op, result, flags: Done::BUFFER | more, buffer });
                    if once || !view.file(index).is_some_and(interest::can_read) {
                        return;
                    }
                }
                Outcome::Ended(result) => return view.push_done(Done::plain(op, result)),
            }
        }
        self.continue_later(view, index);
    }

    fn read_to_pool(&mut self, view: &mut View<'_>, index: u32, offset: Option<u64>) -> Outcome {
        let Some(buffer) = view.read_pool().take_free() else {
            return Outcome::Ended(-libc::ENOBUFS);
        };
        let (result, shape) = loop {
            let Some(file) = view.file(index) else {
                break (Ok(0), Shape::File);
            };
            let Some(fd) = file.descriptor() else {
                break (Err(io::Error::from_raw_os_error(libc::ECANCELED)), file.shape());
            };
            let (shape, place) = (file.shape(), place(file, offset));
            let result = calls::read_to_pool(fd, shape, place, view.read_pool(), buffer);
            view.count_calls(1);
            if !must_set_nonblocking(view, index, place, &result) {
                break (result, shape);
            }
        };
        match result {
            Ok(DATAGRAM_OFFSET) if shape == (Shape::Datagram { connected: true }) => {
                view.read_pool().put_free(buffer);
                Outcome::Ended(0)
            }
            Ok(0) => {
                view.read_pool().put_free(buffer);
                Outcome::Ended(0)
            }
            Ok(len) => {
                interest::note_read(view, index, len, view.read_pool().buffer_size() as usize);
                Outcome::Filled(len as i32, buffer)
            }
            Err(error) => {
                view.read_pool().put_free(buffer);
                outcome_of_failure(view, index, &error)
            }
        }
    }

    fn read_to_caller(&mut self, view: &mut View<'_>, index: u32, op: OpId) {
        let (result, asked) = loop {
            let Some((file, OpKind::Read { data, offset })) = view.task(op) else {
                return;
            };
            let Some(fd) = file.descriptor() else {
                return;
            };
            let place = place(file, *offset);
            let result = calls::read_to_caller(fd, file.shape(), place, data, &mut self.pieces);
            let asked = data.room();
            view.count_calls(1);
            if !must_set_nonblocking(view, index, place, &result) {
                break (result, asked);
            }
        };
        match result {
            Ok(len) => {
                if len > 0 {
                    interest::note_read(view, index, len, asked);
                }
                view.push_done(Done::plain(op, len.min(i32::MAX as usize) as i32));
            }
            Err(error) => {
                if let Outcome::Ended(result) = outcome_of_failure(view, index, &error) {
                    view.push_done(Done::plain(op, result));
                }
            }
        }
    }
}

fn outcome_of_failure(view: &mut View<'_>, index: u32, error: &io::Error) -> Outcome {
    let always_ready = view.file(index).is_some_and(interest::is_always_ready);
    if error.raw_os_error() == Some(libc::EAGAIN) && !always_ready {
        interest::note_exhausted(view, index);
        return Outcome::NotYet;
    }
    Outcome::Ended(-errno(error))
}

/// Where in the file a read or write takes place, and how it is kept from waiting.
pub(super) fn place(file: FileView<'_>, offset: Option<u64>) -> Place {
    match offset {
        Some(offset) => Place::Offset(offset),
        None if matches!(file.shape(), Shape::Pipe { .. }) && !interest::is_nonblocking(file) => {
            Place::PositionNoWait
        }
        None => Place::Position,
    }
}

/// Whether the file refused RWF_NOWAIT and has O_NONBLOCK now: the call is to be repeated.
#[inline]
pub(super) fn must_set_nonblocking<T>(
    view: &mut View<'_>,
    index: u32,
    place: Place,
    result: &io::Result<T>,
) -> bool {
    if place != Place::PositionNoWait {
        return false;
    }
    let refused = matches!(result, Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP));
    refused && interest::set_nonblocking(view, index).is_ok()
}
