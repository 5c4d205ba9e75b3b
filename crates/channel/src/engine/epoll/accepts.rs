//! Accepts and connects: operations that wait on a handle without standing in its queues.

use std::os::fd::IntoRawFd;

use socket2::SockRef;

use super::{Epoll, errno, interest, status};
use crate::accept::{AcceptAs, AcceptCount};
use crate::core::{Core, Op, OpKind};
use crate::engine::Done;
use crate::id::OpId;
use crate::op_list::NO_OP;

/// Connections that one listener may give in one turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Epoll {
    pub(super) fn start_accept(&mut self, core: &mut Core, op: OpId, index: u32) {
        if let Err(error) = self.watch(core, index, false) {
            core.push_done(Done::plain(op, -error));
            return;
        }
        // The first accept of a handle is tried at once: a socket that does not listen
        // would never have an edge.
        interest::prepare_listener(core, index);
        interest::append_waiter(core, index, op);
        self.run_accepts(core, index);
    }

    pub(super) fn start_connect(&mut self, core: &mut Core, op: OpId, index: u32) {
        let (Some(fd), Some(Op { kind: OpKind::Connect(address), .. })) =
            (interest::descriptor(core, index), core.op(op))
        else {
            core.push_done(Done::plain(op, -libc::ECANCELED));
            return;
        };
        let result = sys::socket::connect_now(fd, address);
        core.stats.system_calls += 1;
        match result {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => {
                match self.watch(core, index, true) {
                    Ok(()) => interest::append_waiter(core, index, op),
                    Err(error) => core.push_done(Done::plain(op, -error)),
                }
            }
            result => {
                if let Some(entry) = core.handles.at_mut(index) {
                    entry.write_blocked = false;
                }
                core.push_done(Done::plain(op, status(result)));
            }
        }
    }

    /// The socket became writable, or failed: the outcome of its connect is known.
    pub(super) fn run_connects(&mut self, core: &mut Core, index: u32) {
        let mut at = interest::first_waiter(core, index);
        while let Some(waiter) = at {
            let Some(op) = core.ops.at(waiter) else { return };
            at = Some(op.next).filter(|&next| next != NO_OP);
            if !matches!(op.kind, OpKind::Connect(_)) {
                continue;
            }
            core.stats.system_calls += 1;
            let outcome = interest::descriptor(core, index).map(|fd| SockRef::from(&fd).take_error());
            let result = match outcome {
                Some(Ok(None)) => 0,
                Some(Ok(Some(error)) | Err(error)) => -errno(&error),
                None => -libc::ECANCELED,
            };
            interest::unlink_waiter(core, index, waiter);
            let op = core.op_id(waiter);
            core.push_done(Done::plain(op, result));
        }
    }

    /// Accepts for the handle's accepts, in their order, while connections wait.
    pub(super) fn run_accepts(&mut self, core: &mut Core, index: u32) {
        let mut left = ACCEPTS_PER_TURN;
        loop {
            let Some(waiter) = interest::first_waiter(core, index) else {
                return;
            };
            if !core.handles.at(index).is_some_and(interest::can_read) {
                return;
            }
            let Some(Op { kind: OpKind::Accept(state), .. }) = core.ops.at(waiter) else {
                return;
            };
            let (count, kind) = (state.count, state.kind);
            let with_peer = state.peer.is_some();
            let room = match kind {
                AcceptAs::LwSocket => room_for_lwsockets(core),
                AcceptAs::Fd => left,
            };
            if left == 0 || room == 0 {
                return self.continue_later(core, index);
            }
            let op = core.op_id(waiter);
            left -= match count {
                // There is room for one peer's address.
                _ if with_peer => self.accept_some(core, index, op, 1),
                AcceptCount::Unlimited => self.accept_all(core, index, op, left.min(room)),
                AcceptCount::Exactly(count) => {
                    self.accept_some(core, index, op, left.min(room).min(count as usize))
                }
            };
        }
    }

    /// An accept without end: takes up to `most` connections and says how many it took.
    fn accept_all(&mut self, core: &mut Core, index: u32, op: OpId, most: usize) -> usize {
        // A connection is reported once it is known whether another one follows.
        let mut last = None;
        for taken in 0..most {
            match accept(core, index, op) {
                Ok(connection) => {
                    if let Some(before) = last.replace(connection) {
                        report(core, op, before, Done::MORE | Done::PENDING);
                    }
                }
                Err(error) => {
                    let pending = if error == libc::EAGAIN { 0 } else { Done::PENDING };
                    if let Some(last) = last {
                        report(core, op, last, Done::MORE | pending);
                    }
                    self.stop_accepting(core, index, op, error);
                    return taken;
                }
            }
        }
        if let Some(last) = last {
            report(core, op, last, Done::MORE | Done::PENDING);
        }
        most
    }

    /// An accept of so many: takes up to `most`, ends with the last of them, and says how
    /// many it took. What is left of its count is started anew once these are handed out.
    fn accept_some(&mut self, core: &mut Core, index: u32, op: OpId, most: usize) -> usize {
        let mut last = None;
        let mut taken = 0;
        let mut drained = false;
        while taken < most {
            match accept(core, index, op) {
                Ok(connection) => {
                    taken += 1;
                    if let Some(before) = last.replace(connection) {
                        report(core, op, before, Done::MORE | Done::PENDING);
                    }
                }
                Err(error) if last.is_none() => {
                    self.stop_accepting(core, index, op, error);
                    return taken;
                }
                // An error that is not of the moment comes again at the next start.
                Err(error) => {
                    drained = error == libc::EAGAIN;
                    break;
                }
            }
        }
        if drained {
            interest::note_exhausted(core, index);
        } else if taken == most {
            core.stats.system_calls += 1;
            let waiting = interest::descriptor(core, index).map(sys::socket::is_readable);
            drained = matches!(waiting, Some(Ok(false)));
        }
        if let Some(last) = last {
            interest::unlink_waiter(core, index, op.index);
            report(core, op, last, if drained { 0 } else { Done::PENDING });
        }
        taken
    }

    /// Nobody waits any more, or accepting failed.
    fn stop_accepting(&mut self, core: &mut Core, index: u32, op: OpId, error: i32) {
        if error == libc::EAGAIN {
            interest::note_exhausted(core, index);
            return;
        }
        interest::unlink_waiter(core, index, op.index);
        core.push_done(Done::plain(op, -error));
    }
}

/// Lightweight sockets that fit beside those that exist and those that are on their way
/// to the user; while none are on their way, one is let through for the channel's own
/// bound to catch.
fn room_for_lwsockets(core: &Core) -> usize {
    let live = core.lwsockets.live.get() as usize + core.done.len();
    let room = (core.config.lwsockets_max as usize).saturating_sub(live);
    if core.done.is_empty() { room.max(1) } else { room }
}

/// The next connection's descriptor, or an errno. Connections that failed while they
/// waited are passed over (accept(2), "Error handling").
fn accept(core: &mut Core, index: u32, op: OpId) -> Result<i32, i32> {
    loop {
        core.stats.system_calls += 1;
        let Some(listener) = core.handles.at(index).and_then(interest::descriptor_of) else {
            return Err(libc::ECANCELED);
        };
        let peer = match core.ops.get_mut(op.index, op.generation) {
            Some(Op { kind: OpKind::Accept(state), .. }) => state.peer.as_deref_mut(),
            _ => None,
        };
        match sys::socket::accept(listener, peer) {
            Ok(connection) => return Ok(connection.into_raw_fd()),
            Err(error) => match errno(&error) {
                libc::ECONNABORTED | libc::EINTR | libc::EPROTO => {}
                error => return Err(error),
            },
        }
    }
}

fn report(core: &mut Core, op: OpId, connection: i32, flags: u8) {
    core.push_done(Done { op, result: connection, flags, buffer: 0 });
}
