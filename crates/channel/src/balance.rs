//! Handing accepted connections from a busy channel to an idle one of the same partitioned
//! listener. MegaPipe left it as future work (OSDI 2012, section 6).

use std::io;

use crate::accept::{AcceptAs, AcceptCount, Accepted};
use crate::channel::Channel;
use crate::completion::{Completion, Event};
use crate::core::{Op, OpKind};
use crate::error::ControlError;
use crate::source::Source;

impl Channel {
    /// Tells the other channels of our partitioned listeners whether we could take work.
    pub(crate) fn publish_idle(&mut self, idle: bool) {
        if !self.core.config.balance {
            return;
        }
        let handles = &self.core.handles;
        let load = handles.len();
        self.partitioned.retain(|listener| match handles.get(listener.index, listener.generation) {
            Some(entry) => {
                if let Some(member) = &entry.member {
                    member.publish(idle, load);
                }
                true
            }
            None => false,
        });
    }

    /// Hands a fresh connection to an idle channel of the same listener if this one has
    /// other work waiting; gives back what is not handed over.
    pub(crate) fn balance(&mut self, completion: Completion) -> Option<Completion> {
        let backlog = self.core.done.len();
        let load = self.core.handles.len();
        if backlog == 0 || !matches!(completion.event, Event::Accept { result: Ok(_), .. }) {
            return Some(completion);
        }
        let listener = self.core.handles.get(completion.handle.index, completion.handle.generation);
        let Some(peer) =
            listener.and_then(|entry| entry.member.as_ref()).and_then(|member| member.idle_peer(load))
        else {
            return Some(completion);
        };
        let Event::Accept { result: Ok(Accepted { socket, .. }), more } = completion.event else {
            return Some(completion);
        };
        let fd = match socket {
            Source::Fd(fd) => Ok(fd),
            Source::LwSocket(socket) => self.to_fd(socket),
        };
        match fd {
            Ok(fd) => {
                peer.hand_over(fd);
                self.core.stats.handed_over += 1;
                None
            }
            // The connection is lost to a lack of descriptors: the user hears of it as of
            // any failed accept.
            Err(error) => {
                let error = match error {
                    ControlError::Io(error) => error,
                    _ => io::Error::from_raw_os_error(libc::EMFILE),
                };
                let result = Err(crate::AcceptError::Exhausted(error));
                Some(Completion { event: Event::Accept { result, more }, ..completion })
            }
        }
    }

    pub(crate) fn collect_handed_over(&mut self) {
        if !self.core.config.balance {
            return;
        }
        for &listener in &self.partitioned {
            let entry = self.core.handles.get(listener.index, listener.generation);
            if let Some(member) = entry.and_then(|entry| entry.member.as_ref()) {
                self.taken_over.extend(member.take_handed_over().map(|fd| (listener, fd)));
            }
        }
    }

    /// The next connection from another channel, as a completion of our own unlimited
    /// accept. One for which there is no accept or no room now waits; one whose listener
    /// was closed goes the way of its accept queue.
    pub(crate) fn accept_handed_over(&mut self) -> Option<Completion> {
        let &(listener, _) = self.taken_over.front()?;
        let Ok(cookie) = self.cookie(listener) else {
            self.taken_over.pop_front();
            return None;
        };
        let (op, kind) =
            self.core.ops.indices().into_iter().find_map(|index| match self.core.ops.at(index) {
                Some(Op { handle, cancelled: false, kind: OpKind::Accept(state), .. })
                    if *handle == listener && state.count == AcceptCount::Unlimited =>
                {
                    Some((self.core.op_id(index), state.kind))
                }
                _ => None,
            })?;
        if kind == AcceptAs::LwSocket && self.core.lwsockets_full() {
            return None;
        }
        let (_, fd) = self.taken_over.pop_front()?;
        let socket = match kind {
            AcceptAs::Fd => Source::Fd(fd),
            AcceptAs::LwSocket => Source::LwSocket(self.to_lwsocket(fd).ok()?),
        };
        self.core.stats.handed_over += 1;
        self.core.stats.completions += 1;
        let event = Event::Accept { result: Ok(Accepted { socket, pending: false }), more: true };
        Some(Completion { handle: listener, cookie, op, event })
    }
}
