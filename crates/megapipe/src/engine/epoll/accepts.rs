//! Accepts and connects: operations that wait on a handle without standing in its queues.

use std::os::fd::IntoRawFd;

use socket2::SockRef;

use super::{Epoll, errno, interest, status};
use crate::accept::{AcceptAs, AcceptCount};
use crate::core::{Op, OpKind};
use crate::engine::Done;
use crate::engine::view::View;
use crate::id::OpId;

/// Connections that one listener may give in one turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Epoll {
    pub(super) fn start_accept(&mut self, view: &mut View<'_>, op: OpId, index: u32) {
        if view.is_ended(op) {
            view.push_done(Done::plain(op, -libc::ECANCELED));
            return;
        }
        if let Err(error) = self.watch_file(view, index, false) {
            view.push_done(Done::plain(op, -error));
            return;
        }
        // The first accept of a handle is tried at once: a socket that does not listen
        // would never have an edge.
        interest::prepare_listener(view, index);
        interest::append_waiter(view, index, op);
        self.run_accepts(view, index);
    }

    pub(super) fn start_connect(&mut self, view: &mut View<'_>, op: OpId, index: u32) {
        let (Some(fd), Some(Op { kind: OpKind::Connect(address), .. })) =
            (interest::descriptor(view, index), view.op(op))
        else {
            view.push_done(Done::plain(op, -libc::ECANCELED));
            return;
        };
        let result = sys::socket::connect_now(fd, address);
        view.count_calls(1);
        match result {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
                match self.watch_file(view, index, true) {
                    Ok(()) => interest::append_waiter(view, index, op),
                    Err(error) => view.push_done(Done::plain(op, -error)),
                }
            }
            result => {
                view.unblock_writes(index);
                view.push_done(Done::plain(op, status(result)));
            }
        }
    }

    /// The socket became writable, or failed: the outcome of its connect is known.
    pub(super) fn run_connects(&mut self, view: &mut View<'_>, index: u32) {
        let mut at = interest::first_waiter(view, index);
        while let Some(waiter) = at {
            let op = view.op_id(waiter);
            at = view.next_of(waiter);
            if !matches!(view.op(op), Some(Op { kind: OpKind::Connect(_), .. })) {
                continue;
            }
            view.count_calls(1);
            let outcome = interest::descriptor(view, index).map(|fd| SockRef::from(&fd).take_error());
            let result = match outcome {
                Some(Ok(None)) => 0,
                Some(Ok(Some(error)) | Err(error)) => -errno(&error),
                None => -libc::ECANCELED,
            };
            interest::unlink_waiter(view, index, waiter);
            view.push_done(Done::plain(op, result));
        }
    }

    /// Accepts for the handle's accepts, in their order, while connections wait.
    pub(super) fn run_accepts(&mut self, view: &mut View<'_>, index: u32) {
        let mut left = ACCEPTS_PER_TURN;
        loop {
            let Some(waiter) = interest::first_waiter(view, index) else {
                return;
            };
            if !view.file(index).is_some_and(interest::can_read) {
                return;
            }
            let op = view.op_id(waiter);
            let Some(Op { kind: OpKind::Accept(state), .. }) = view.op(op) else {
                return;
            };
            let (count, kind) = (state.count, state.kind);
            let with_peer = state.peer.is_some();
            let room = match kind {
                AcceptAs::LwSocket => view.room_for_lwsockets(false),
                AcceptAs::Fd => left,
            };
            if left == 0 || room == 0 {
                return self.continue_later(view, index);
            }
            left -= match count {
                // There is room for one peer's address.
                _ if with_peer => self.accept_some(view, index, op, 1),
                AcceptCount::Unlimited => self.accept_all(view, index, op, left.min(room)),
                AcceptCount::Exactly(count) => {
                    self.accept_some(view, index, op, left.min(room).min(count as usize))
                }
            };
        }
    }

    /// An accept without end: accepts up to `most` connections and returns how many it
    /// accepted.
    fn accept_all(&mut self, view: &mut View<'_>, index: u32, op: OpId, most: usize) -> usize {
        // A connection is reported once the next accept has shown whether another one
        // follows.
        let mut last = None;
        for accepted in 0..most {
            match accept(view, op) {
                Ok(connection) => {
                    if let Some(before) = last.replace(connection) {
                        report(view, op, before, Done::MORE | Done::PENDING);
                    }
                }
                Err(error) => {
                    let pending = if error == libc::EAGAIN { 0 } else { Done::PENDING };
                    if let Some(last) = last {
                        report(view, op, last, Done::MORE | pending);
                    }
                    self.stop_accepting(view, index, op, error);
                    return accepted;
                }
            }
        }
        if let Some(last) = last {
            report(view, op, last, Done::MORE | Done::PENDING);
        }
        most
    }

    /// An accept of a given number: accepts up to `most` connections, ends with the last
    /// of its count, and returns how many it accepted. What is left of the count is
    /// started again once these are delivered.
    fn accept_some(&mut self, view: &mut View<'_>, index: u32, op: OpId, most: usize) -> usize {
        let mut last = None;
        let mut accepted = 0;
        let mut drained = false;
        while accepted < most {
            match accept(view, op) {
                Ok(connection) => {
                    accepted += 1;
                    if let Some(before) = last.replace(connection) {
                        report(view, op, before, Done::MORE | Done::PENDING);
                    }
                }
                Err(error) if last.is_none() => {
                    self.stop_accepting(view, index, op, error);
                    return accepted;
                }
                // A lasting error comes again at the next start.
                Err(error) => {
                    drained = error == libc::EAGAIN;
                    break;
                }
            }
        }
        if drained {
            interest::note_exhausted(view, index);
        } else if accepted == most {
            view.count_calls(1);
            let waiting = interest::descriptor(view, index).map(sys::socket::is_readable);
            drained = matches!(waiting, Some(Ok(false)));
        }
        if let Some(last) = last {
            interest::unlink_waiter(view, index, op.index);
            report(view, op, last, if drained { 0 } else { Done::PENDING });
        }
        accepted
    }

    /// No connection waits any more, or accepting failed.
    fn stop_accepting(&mut self, view: &mut View<'_>, index: u32, op: OpId, error: i32) {
        if error == libc::EAGAIN {
            interest::note_exhausted(view, index);
            return;
        }
        interest::unlink_waiter(view, index, op.index);
        view.push_done(Done::plain(op, -error));
    }
}

/// The next connection's descriptor, or an errno. Connections that failed while they
/// waited are passed over (accept(2), "Error handling").
fn accept(view: &mut View<'_>, op: OpId) -> Result<i32, i32> {
    loop {
        view.count_calls(1);
        let Some((file, OpKind::Accept(state))) = view.task(op) else {
            return Err(libc::ECANCELED);
        };
        let Some(listener) = file.descriptor() else {
            return Err(libc::ECANCELED);
        };
        let peer = state.peer.as_deref_mut();
        match sys::socket::accept(listener, peer) {
            Ok(connection) => return Ok(connection.into_raw_fd()),
            Err(error) => match errno(&error) {
                libc::ECONNABORTED | libc::EINTR | libc::EPROTO => {}
                error => return Err(error),
            },
        }
    }
}

fn report(view: &mut View<'_>, op: OpId, connection: i32, flags: u8) {
    view.push_done(Done { op, result: connection, flags, buffer: 0 });
}
