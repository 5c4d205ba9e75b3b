//! Accepting connections: one, a given number, or without end.
#![allow(unsafe_code)] // a descriptor number from the kernel becomes an owned descriptor

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit};
use sys::socket::AddressRoom;

use crate::completion::Event;
use crate::core::{Core, HandleEntry, Op, OpKind, State, WriteState, outcome};
use crate::engine::{Done, Request};
use crate::error::{AcceptError, SubmitError};
use crate::id::OpId;
use crate::lwsocket::{LwFile, LwSocket};
use crate::source::{Shape, Source};

/// How many connections an accept takes (paper, Table 1: `mp_accept(handle, count, ..)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptCount {
    /// This many, then the accept ends; at least 1.
    Exactly(u32),
    /// All, until it is cancelled or its handle closed.
    Unlimited,
}

/// What an accepted connection becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptAs {
    /// A lightweight socket, for use in this channel.
    LwSocket,
    /// A descriptor, for use anywhere.
    Fd,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection; register it to use it in this channel.
    pub socket: Source,
    /// Whether more connections were waiting. A hint: with several acceptors on one
    /// listener, another may take them, and the io_uring engine never sets it before
    /// Linux 6.10.
    pub pending: bool,
    /// The peer's address, after [`crate::Channel::accept_with_peer`] of a listener on IPv4
    /// or IPv6.
    pub peer: Option<SocketAddr>,
}

pub(crate) struct AcceptState {
    pub(crate) count: AcceptCount,
    pub(crate) kind: AcceptAs,
    /// Where the engine writes the peer's address; it then takes one connection at a time.
    pub(crate) peer: Option<Box<AddressRoom>>,
    /// Why it is not running, if it is not.
    paused: Option<Paused>,
    /// Its pause is not reported yet: the ECANCELED that reports it is still to be
    /// settled.
    unreported: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Paused {
    /// Until a lightweight socket is closed.
    TableFull,
    /// Until a descriptor is free.
    Exhausted,
}

/// Time before the next try to accept when the process is out of descriptors: they may be
/// closed where the channel does not see it.
const RETRY: Duration = Duration::from_millis(100);

/// One line for the process: which limit to raise, where the limit of the process and not
/// its settings ends the accepting.
#[cold]
fn warn_limit(handles: u32) {
    static LOGGED: std::sync::Once = std::sync::Once::new();
    LOGGED.call_once(|| {
        let remedy = remedy(&getrlimit(Resource::Nofile));
        tracing::warn!("accepting pauses at {handles} handles: {remedy}");
    });
}

/// Which limit of open files is reached, and who may raise it.
fn remedy(limit: &Rlimit) -> String {
    match (limit.current, limit.maximum) {
        (Some(soft), hard) if hard.is_none_or(|hard| soft < hard) => format!(
            "the soft limit of open files (RLIMIT_NOFILE), {soft}, allows no more; raise it (ulimit -n, \
             setrlimit(2)), up to the hard one, {}",
            hard.map_or("unlimited".into(), |hard| hard.to_string())
        ),
        _ => "the hard limit of open files (RLIMIT_NOFILE) allows no more; raise it (systemd: LimitNOFILE=, \
              as root: prlimit --nofile=)"
            .into(),
    }
}

impl AcceptState {
    pub(crate) fn new(count: AcceptCount, kind: AcceptAs, with_peer: bool) -> AcceptState {
        let peer = with_peer.then(|| Box::new(AddressRoom::new()));
        AcceptState { count, kind, peer, paused: None, unreported: false }
    }

    /// Whether it waits for room.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Whether the engine may take connections one after the other without being asked anew.
    pub(crate) fn is_multishot(&self) -> bool {
        self.count == AcceptCount::Unlimited && self.peer.is_none()
    }
}

impl Core {
    /// Queues an accept behind the listener's other accepts. They stand in the queue of
    /// reads: a listener has none.
    pub(crate) fn queue_accept(&mut self, handle: u32, state: AcceptState) -> Result<OpId, SubmitError> {
        let op = self.add_op(handle, OpKind::Accept(state)).map_err(|(reason, _)| reason)?;
        let listens = self.handles.at(handle).is_some_and(|entry| entry.shape.is_listener());
        if !listens || self.push_read(handle, op.index) {
            self.request_start(op);
        }
        Ok(op)
    }

    /// Cancels an accept ahead of all other requests: an earlier call to the kernel could
    /// accept connections that others would get.
    pub(crate) fn cancel_accept(&mut self, op: OpId) {
        let Some(entry) = self.op_mut(op) else { return };
        entry.cancelled = true;
        let (started, handle) = (entry.started, entry.handle.index);
        match started {
            true if self.is_of_stack(handle) => self.stack_requests.push_front(Request::Cancel(op)),
            true => self.requests.push_front(Request::Cancel(op)),
            false => {}
        }
    }

    /// Cancels the accepts of a handle that is closed or unregistered.
    pub(crate) fn cancel_accepts_of(&mut self, handle: u32) {
        for op in self.accepts_of(handle) {
            self.cancel_accept(op);
        }
    }

    /// Cancels all accepts: the channel ends.
    pub(crate) fn cancel_all_accepts(&mut self) {
        for op in self.accepts(|_| true) {
            self.cancel_accept(op);
        }
    }

    /// The accepts of a handle. A socket registered before its listen(2) has the shape of a connection,
    /// and accepts that are in no list. All operations are searched only where the engine has more of
    /// the handle than a read and a held write.
    pub(crate) fn accepts_of(&self, handle: u32) -> Vec<OpId> {
        let Some(entry) = self.handles.at(handle) else { return Vec::new() };
        let reads = self.ops.at(entry.reads.head).is_some_and(|read| read.started);
        let listed = u32::from(reads) + u32::from(entry.write_state == WriteState::Held);
        if !entry.shape.is_listener() && entry.in_engine <= listed {
            return Vec::new();
        }
        self.accepts(|op| op.handle.index == handle)
    }

    fn accepts(&self, wanted: impl Fn(&Op) -> bool) -> Vec<OpId> {
        let is_accept = |op: &Op| matches!(op.kind, OpKind::Accept(_)) && wanted(op);
        let indices = self.ops.indices().into_iter();
        indices.filter(|&at| self.ops.at(at).is_some_and(is_accept)).map(|at| self.op_id(at)).collect()
    }

    /// Whether the next accept into the lightweight table may be the last that fits.
    /// Engines then accept one at a time.
    pub(crate) fn lwsockets_nearly_full(&self) -> bool {
        self.lwsockets_left(false) <= 64
    }

    /// Lightweight sockets that may still be made: of a stack, or else the kernel's.
    pub(crate) fn lwsockets_left(&self, of_stack: bool) -> u32 {
        let (all, of_stacks) = (self.lwsockets.live.get(), self.lwsockets.live_of_stacks.get());
        let left = self.config.lwsockets_max.saturating_sub(all);
        match of_stack {
            true => left,
            false => left.min(self.kernel_lwsockets_max.saturating_sub(all - of_stacks)),
        }
    }

    pub(crate) fn settle_accept(&mut self, handle: u32, done: &Done) -> Option<Event> {
        let ended = !done.has(Done::MORE);
        let Some(Op { kind: OpKind::Accept(state), cancelled, .. }) = self.ops.at_mut(done.op.index) else {
            return None;
        };
        let cancelled = *cancelled;
        if done.result >= 0 {
            if let AcceptCount::Exactly(left) = &mut state.count {
                *left -= 1;
            }
            let (kind, more) = (state.kind, state.count != AcceptCount::Exactly(0));
            let peer = state.peer.as_ref().and_then(|room| room.address());
            self.spin.accepted();
            self.count_accepted(handle);
            let socket = self.accepted(handle, kind, done);
            if kind == AcceptAs::LwSocket && self.lwsockets_left(done.has(Done::STACK)) == 0 && more {
                self.pause_accept(done.op, Paused::TableFull);
            } else if ended && more {
                if cancelled {
                    self.push_cancelled(done.op);
                } else {
                    self.request_start(done.op);
                }
            } else if ended {
                self.end_read(handle, done.op);
            }
            let pending = done.has(Done::PENDING);
            return Some(Event::Accept { result: Ok(Accepted { socket, pending, peer }), more });
        }
        let paused = state.paused;
        let kind = state.kind;
        if done.result == -libc::ECANCELED {
            state.unreported = false;
        }
        let error = io::Error::from_raw_os_error(-done.result);
        match -done.result {
            libc::ECANCELED if paused == Some(Paused::TableFull) && !cancelled => {
                Some(Event::Accept { result: Err(AcceptError::TableFull), more: true })
            }
            libc::ECANCELED => {
                self.end_read(handle, done.op);
                Some(Event::Accept { result: Err(AcceptError::Cancelled), more: false })
            }
            libc::ENFILE if kind == AcceptAs::LwSocket && self.direct_slots => {
                self.pause_accept(done.op, Paused::TableFull);
                Some(Event::Accept { result: Err(AcceptError::TableFull), more: true })
            }
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                if done.result == -libc::EMFILE {
                    warn_limit(self.handles.len());
                }
                self.pause_accept(done.op, Paused::Exhausted);
                Some(Event::Accept { result: Err(AcceptError::Exhausted(error)), more: true })
            }
            // accept(2): errors of the accepted connection, not of the listener.
            libc::ECONNABORTED
            | libc::EPROTO
            | libc::ENETDOWN
            | libc::ENOPROTOOPT
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EAGAIN
            | libc::EINTR => {
                if ended && cancelled {
                    self.push_cancelled(done.op);
                } else if ended {
                    self.request_start(done.op);
                }
                None
            }
            _ => {
                self.end_read(handle, done.op);
                Some(Event::Accept { result: Err(AcceptError::Io(error)), more: false })
            }
        }
    }

    fn accepted(&mut self, listener: u32, kind: AcceptAs, done: &Done) -> Source {
        let result = done.result;
        let shape =
            self.handles.at(listener).map_or(Shape::Stream { tcp: false }, |entry| entry.shape.of_accepted());
        match kind {
            AcceptAs::LwSocket => {
                let file = if done.has(Done::STACK) {
                    LwFile::Stack(result as u32)
                } else if self.direct_slots {
                    LwFile::Direct(result as u32)
                } else {
                    LwFile::Private(own(result))
                };
                Source::LwSocket(LwSocket::new(file, shape, &self.lwsockets))
            }
            AcceptAs::Fd => Source::Fd(own(result)),
        }
    }

    /// Closes the connection that an accept returned for a closed listener.
    pub(crate) fn discard_accepted(&mut self, done: &Done) {
        if done.result < 0 {
            return;
        }
        if let Some(Op { kind: OpKind::Accept(state), handle, .. }) = self.op(done.op) {
            let (kind, handle) = (state.kind, handle.index);
            drop(self.accepted(handle, kind, done));
        }
    }

    /// Closes the connections of a closed listener that were not delivered: once its
    /// accept is gone, nothing says what their results are.
    pub(crate) fn discard_all_accepted(&mut self, op: OpId) {
        let mut queue = std::mem::take(&mut self.done);
        queue.retain(|done| {
            if done.op == op {
                self.discard_accepted(done);
            }
            done.op != op
        });
        self.done = queue;
    }

    /// Stops an accept until there is room; one that the engine runs is cancelled.
    fn pause_accept(&mut self, op: OpId, why: Paused) {
        self.stats.accepts_paused += 1;
        let Some(entry) = self.op_mut(op) else { return };
        let started = entry.started;
        if entry.cancelled && !started {
            return self.push_cancelled(op);
        }
        if let OpKind::Accept(state) = &mut entry.kind {
            if state.paused == Some(Paused::TableFull) {
                return;
            }
            state.paused = Some(why);
            state.unreported = why == Paused::TableFull;
        }
        if why == Paused::TableFull && self.lwsockets_left(true) > 0 {
            warn_limit(self.kernel_lwsockets_max);
        }
        self.paused_accepts.push(op);
        if why == Paused::Exhausted {
            self.retry_accepts_at = Some(Instant::now() + RETRY);
        } else if started {
            self.request(Request::Cancel(op));
        } else {
            self.done.push_back(Done::plain(op, -libc::ECANCELED));
        }
    }

    /// Starts the paused accepts for which there is room again.
    pub(crate) fn resume_accepts(&mut self) {
        let full = [false, true].map(|of_stack| self.lwsockets_left(of_stack) == 0);
        let retry = self.retry_accepts_at.is_some_and(|at| at <= Instant::now());
        if retry {
            self.retry_accepts_at = None;
        }
        let mut paused = std::mem::take(&mut self.paused_accepts);
        paused.retain(|&op| {
            let Some(entry) = self.ops.get_mut(op.index, op.generation) else {
                return false;
            };
            let handle = self.handles.get(entry.handle.index, entry.handle.generation);
            let full = full[usize::from(handle.is_some_and(HandleEntry::is_of_stack))];
            let (started, cancelled) = (entry.started, entry.cancelled);
            if handle.is_none_or(|handle| handle.state != State::Open) {
                // If the engine still has it, it is removed at its end.
                if !started {
                    let listener = entry.handle.index;
                    self.unlink(listener, op.index, |entry| &mut entry.reads);
                    self.ops.remove(op.index);
                }
                return false;
            }
            let OpKind::Accept(state) = &mut entry.kind else {
                return false;
            };
            let Some(why) = state.paused else {
                return false;
            };
            if started
                || state.unreported
                || (why == Paused::TableFull && full)
                || (why == Paused::Exhausted && !retry)
            {
                return true;
            }
            state.paused = None;
            if !cancelled {
                self.request_start(op);
            }
            false
        });
        self.paused_accepts = paused;
    }

    /// Whether a paused accept could go on now.
    pub(crate) fn accepts_can_resume(&self) -> bool {
        self.paused_accepts.iter().any(|&op| {
            let handle = self.op(op).and_then(|op| self.handles.at(op.handle.index));
            self.lwsockets_left(handle.is_some_and(HandleEntry::is_of_stack)) > 0
        })
    }
}

/// Owns the descriptor that an accept just made.
fn own(descriptor: i32) -> OwnedFd {
    debug_assert!(outcome(descriptor).is_ok());
    // SAFETY: the kernel gave this descriptor to an accept of this channel, whose result
    // is settled or discarded exactly once.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_is_met_is_named() {
        let limit = |current, maximum| remedy(&Rlimit { current, maximum });
        assert!(
            limit(Some(1024), Some(4096)).starts_with("the soft limit of open files (RLIMIT_NOFILE), 1024,")
        );
        assert!(limit(Some(1024), Some(4096)).ends_with("up to the hard one, 4096"));
        assert!(limit(Some(1024), None).ends_with("unlimited"));
        assert!(limit(Some(4096), Some(4096)).starts_with("the hard limit"));
    }
}
