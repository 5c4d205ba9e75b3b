//! Reads, writes and shutdowns on connections of a stack.

use std::net::Shutdown;

use tcp::{Read, ReadError, WriteError};

use super::{Of, Socket, Stacks, errno_of, is_held};
use crate::buffer::ReadData;
use crate::core::OpKind;
use crate::engine::Done;
use crate::engine::view::{FileView, View};
use crate::id::OpId;
use crate::write::NextWrites;

/// Buffers that one handle may fill in one turn. More is read when the program has taken these,
/// so the window that the peer sees follows the program.
const READS_PER_TURN: usize = 16;

impl Stacks {
    pub(super) fn start_read(&mut self, view: &mut View<'_>, op: OpId, index: u32) {
        if self.flow_of(view, index).is_none() {
            return view.push_done(Done::plain(op, -libc::ENOTCONN));
        }
        self.read_on(view, index);
    }

    /// Carries out the handle's started read as far as there is something to read.
    pub(super) fn read_on(&mut self, view: &mut View<'_>, index: u32) {
        for _ in 0..READS_PER_TURN {
            // Those that wait for a buffer come first.
            let pooled = self.dry.is_empty();
            if !self.read_once(view, index, pooled) {
                return;
            }
        }
        self.continue_later(view, index);
    }

    /// As [`Self::read_on`], for the first of those that wait for a buffer: it takes one.
    pub(super) fn read_one(&mut self, view: &mut View<'_>, index: u32) {
        if self.read_once(view, index, true) {
            self.wait_for_buffer(view, index);
        }
    }

    /// One read of the handle's started read; `pooled`: it may take a buffer of the pool. Returns
    /// whether the same operation reads on.
    fn read_once(&mut self, view: &mut View<'_>, index: u32, pooled: bool) -> bool {
        let Some(op) = view.started_read(index) else { return false };
        match view.op(op).map(|op| &op.kind) {
            Some(&OpKind::ReadStream { once, .. }) => self.read_to_pool(view, op, index, pooled, !once),
            Some(OpKind::Read { data: ReadData::None, .. }) => {
                self.read_to_pool(view, op, index, pooled, false)
            }
            Some(OpKind::Read { .. }) => self.read_to_caller(view, op, index),
            _ => false,
        }
    }

    /// One read into a buffer of the pool. Returns whether the same operation reads on.
    fn read_to_pool(&mut self, view: &mut View<'_>, op: OpId, index: u32, pooled: bool, more: bool) -> bool {
        let Some((port, flow)) = self.flow_of(view, index) else { return false };
        let (host, now) = (&mut self.ports[port].host, self.now);
        let filled = match pooled {
            false => None,
            true => self.pool.fill_free(|room| match host.read(now, flow, room) {
                Ok(Read::Bytes(len)) => Ok(len),
                other => Err(other),
            }),
        };
        match filled {
            Some(Ok((buffer, len))) => {
                let flags = Done::BUFFER | Done::STACK | if more { Done::MORE } else { 0 };
                view.push_done(Done { op, result: len as i32, flags, buffer });
                return more;
            }
            Some(Err(nothing)) => self.end_read(view, op, index, nothing),
            None => match host.read(now, flow, &mut []) {
                Ok(Read::Empty) if host.info(flow).is_some_and(|info| info.unread > 0) => {
                    view.count_dry_pool();
                    self.wait_for_buffer(view, index);
                }
                nothing => self.end_read(view, op, index, nothing),
            },
        }
        false
    }

    fn read_to_caller(&mut self, view: &mut View<'_>, op: OpId, index: u32) -> bool {
        let Some((port, flow)) = self.flow_of(view, index) else { return false };
        let (host, now) = (&mut self.ports[port].host, self.now);
        let unread = host.info(flow).map_or(0, |info| info.unread as usize);
        if unread == 0 {
            let nothing = host.read(now, flow, &mut []);
            self.end_read(view, op, index, nothing);
            return false;
        }
        let Some((_, OpKind::Read { data, .. })) = view.task(op) else { return false };
        let len = data.fill(unread, &mut |room| match host.read(now, flow, room) {
            Ok(Read::Bytes(len)) => len,
            _ => 0,
        });
        view.push_done(Done::plain(op, len.min(i32::MAX as usize) as i32));
        false
    }

    /// A read found nothing: it waits, or this is its end.
    fn end_read(&mut self, view: &mut View<'_>, op: OpId, index: u32, found: Result<Read, ReadError>) {
        let ended = self.socket_mut(view, index).is_some_and(|socket| socket.read_ended);
        let result = match found {
            Ok(Read::Empty | Read::Bytes(_)) if !ended => return,
            Ok(_) => 0,
            Err(ReadError::Failed(failure)) => {
                self.report_failure(view, index).map_or(0, |()| -errno_of(failure))
            }
            Err(ReadError::Closed) => -libc::EBADF,
        };
        view.push_done(Done::plain(op, result));
    }

    pub(super) fn write_queued(&mut self, view: &mut View<'_>, index: u32) {
        match view.next_writes(index) {
            NextWrites::Nothing => {}
            NextWrites::Disconnect(op, how) => {
                let result = self.shut_down(view, index, how);
                view.push_done(Done::plain(op, result));
                self.read_on(view, index);
            }
            NextWrites::Send { .. } => {
                if view.file(index).is_some_and(FileView::is_write_blocked) {
                    return hold(view, index);
                }
                match self.send_queued(view, index) {
                    Ok((0, true)) => hold(view, index),
                    Ok((sent, blocked)) => view.report_write(index, sent, blocked),
                    Err(errno) => view.report_write(index, -errno, false),
                }
            }
        }
    }

    /// There may be room: sends what was held.
    pub(super) fn write_held(&mut self, view: &mut View<'_>, index: u32) {
        if !is_held(view, index) {
            return view.unblock_writes(index);
        }
        match self.send_queued(view, index) {
            Ok((0, true)) => {}
            Ok((sent, blocked)) => view.report_write(index, sent, blocked),
            Err(errno) => view.report_write(index, -errno, false),
        }
    }

    /// Gives the stack the handle's queue. Returns the number of bytes that it accepted,
    /// and whether there was no room for more; or an errno, if it accepted nothing.
    fn send_queued(&mut self, view: &mut View<'_>, index: u32) -> Result<(i32, bool), i32> {
        let Some(socket) = self.socket_mut(view, index) else { return Err(libc::EBADF) };
        let &mut Socket { port, of: Of::Flow(flow), .. } = socket else { return Err(libc::EPIPE) };
        if socket.connecting.is_some() {
            return Ok((0, true));
        }
        let (host, now) = (&mut self.ports[usize::from(port)].host, self.now);
        let (mut sent, mut ended) = (0, Ok(false));
        view.for_each_queued(index, &mut |part| {
            if ended == Ok(false) {
                match host.write(now, flow, part) {
                    Ok(accepted) => {
                        sent += accepted;
                        ended = Ok(accepted < part.len());
                    }
                    Err(error) => ended = Err(error),
                }
            }
        });
        let sent_so_far = sent.min(i32::MAX as usize) as i32;
        match ended {
            Ok(full) => Ok((sent_so_far, full)),
            // It comes again with the rest.
            Err(_) if sent > 0 => Ok((sent_so_far, false)),
            Err(WriteError::Ended) => Err(libc::EPIPE),
            Err(WriteError::Failed(failure)) => {
                Err(self.report_failure(view, index).map_or(libc::EPIPE, |()| errno_of(failure)))
            }
        }
    }

    /// `Some` for the first read, write or connect that reports the failure of its
    /// connection: later ones find a stream that has ended, as on the kernel's sockets
    /// (SO_ERROR of socket(7)).
    pub(super) fn report_failure(&mut self, view: &View<'_>, index: u32) -> Option<()> {
        let socket = self.socket_mut(view, index)?;
        (!std::mem::replace(&mut socket.failure_reported, true)).then_some(())
    }

    pub(super) fn shut_down(&mut self, view: &mut View<'_>, index: u32, how: Shutdown) -> i32 {
        let Some((port, flow)) = self.flow_of(view, index) else { return -libc::ENOTCONN };
        if how != Shutdown::Write
            && let Some(socket) = self.socket_mut(view, index)
        {
            socket.read_ended = true;
        }
        if how != Shutdown::Read {
            self.ports[port].host.shutdown(self.now, flow);
        }
        0
    }
}

/// Keeps the queue until there is room.
fn hold(view: &mut View<'_>, index: u32) {
    view.block_writes(index);
    view.hold_writes(index);
}
