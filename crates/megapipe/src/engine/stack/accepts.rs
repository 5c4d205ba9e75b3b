//! Accepts and connects on sockets of a stack.

use tcp::{ConnectError, Listener, WriteError};

use super::{Of, Socket, Stacks, errno_of};
use crate::core::{Op, OpKind};
use crate::engine::Done;
use crate::engine::view::View;
use crate::id::OpId;

/// Connections that one listener may give in one turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Stacks {
    pub(super) fn start_accept(&mut self, view: &mut View<'_>, op: OpId, index: u32) {
        match self.socket_mut(view, index) {
            Some(Socket { of: Of::Listener(_), .. }) => self.accept_on(view, index),
            _ => view.push_done(Done::plain(op, -libc::EINVAL)),
        }
    }

    /// Connections wait to be accepted.
    pub(super) fn follow_listener(&mut self, view: &mut View<'_>, port: usize, listener: Listener) {
        let known = self.ports[port].listeners.iter().find(|known| known.listener == listener);
        let socket = known.and_then(|known| self.sockets.at(known.socket));
        if let Some(index) = socket.and_then(|socket| socket.handle) {
            self.accept_on(view, index);
        }
    }

    /// Accepts for the handle's started accept, while connections wait.
    pub(super) fn accept_on(&mut self, view: &mut View<'_>, index: u32) {
        let Some(&mut Socket { port, of: Of::Listener(listener), options, .. }) =
            self.socket_mut(view, index)
        else {
            return;
        };
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(op) = view.started_read(index) else { return };
            let Some(Op { kind: OpKind::Accept(state), .. }) = view.op(op) else { return };
            let goes_on = state.is_multishot();
            if view.room_for_lwsockets(true) == 0 {
                break;
            }
            let host = &mut self.ports[usize::from(port)].host;
            let Some(flow) = host.accept(listener) else { return };
            let Ok((socket, _)) = self.sockets.insert(Socket::new(port, Of::Flow(flow))) else {
                return host.abort(self.now, flow);
            };
            host.set_owner(flow, socket);
            options.apply(self.now, host, flow);
            if let Some((_, OpKind::Accept(state))) = view.task(op)
                && let Some(room) = &mut state.peer
                && let Some((_, peer)) = host.addresses(flow)
            {
                room.set(peer);
            }
            let pending = if host.waiting(listener) > 0 { Done::PENDING } else { 0 };
            let flags = Done::STACK | pending | if goes_on { Done::MORE } else { 0 };
            view.push_done(Done { op, result: socket as i32, flags, buffer: 0 });
            if !goes_on {
                // Started anew when this connection was handed out.
                return;
            }
        }
        self.continue_later(view, index);
    }

    pub(super) fn start_connect(&mut self, view: &mut View<'_>, op: OpId, index: u32) {
        let Some(Op { kind: OpKind::Connect(address), .. }) = view.op(op) else { return };
        let to = address.as_socket();
        let socket = view.file(index).and_then(|file| file.stack_socket());
        let errno = match (to, socket.and_then(|socket| self.sockets.at_mut(socket)), socket) {
            (Some(to), Some(entry @ Socket { of: Of::Nothing, .. }), Some(owner)) => {
                entry.handle = Some(index);
                let port = &mut self.ports[usize::from(entry.port)];
                match port.connect(self.now, to) {
                    Ok(flow) => {
                        let host = &mut port.host;
                        host.set_owner(flow, owner);
                        entry.options.apply(self.now, host, flow);
                        entry.of = Of::Flow(flow);
                        entry.connecting = Some(op);
                        return;
                    }
                    Err(error) => errno_of_connect(error),
                }
            }
            (Some(_), Some(Socket { of: Of::Flow(_), connecting: Some(_), .. }), _) => libc::EALREADY,
            (Some(_), Some(Socket { of: Of::Flow(_), .. }), _) => libc::EISCONN,
            (None, ..) => libc::EAFNOSUPPORT,
            _ => libc::EINVAL,
        };
        view.unblock_writes(index);
        view.push_done(Done::plain(op, -errno));
    }

    /// The connection is open, or failed.
    pub(super) fn finish_connect(&mut self, view: &mut View<'_>, index: u32) {
        let Some((port, flow)) = self.flow_of(view, index) else { return };
        let Some(op) = self.socket_mut(view, index).and_then(|socket| socket.connecting.take()) else {
            return;
        };
        // An empty write returns the reason.
        let result = match self.ports[port].host.write(self.now, flow, &[]) {
            Err(WriteError::Failed(failure)) => {
                self.report_failure(view, index);
                -errno_of(failure)
            }
            Ok(_) | Err(WriteError::Ended) => 0,
        };
        view.push_done(Done::plain(op, result));
    }
}

fn errno_of_connect(error: ConnectError) -> i32 {
    match error {
        ConnectError::InUse => libc::EADDRNOTAVAIL,
        ConnectError::TooMany => libc::ENOBUFS,
        ConnectError::Address => libc::EAFNOSUPPORT,
        ConnectError::Remote => libc::ENETUNREACH,
    }
}
