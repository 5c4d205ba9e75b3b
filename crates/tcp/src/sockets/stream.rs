//! Bytes of connected sockets: read, write, shutdown, errors.

use super::{Errno, Readiness, Socket, Sockets};
use crate::control::Control;
use crate::core::calls::Info;
use crate::core::state::State;
use crate::event::{Failure, Flow};
use crate::host::{Read, ReadError, WriteError};
use crate::time::Time;

/// Which directions `shutdown` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// SHUT_RD: after what has arrived, reads return 0.
    Read,
    /// SHUT_WR: a FIN follows what was written.
    Write,
    /// SHUT_RDWR.
    Both,
}

impl<C: Control> Sockets<C> {
    /// Reads bytes that have arrived. Returns 0 at the end of the stream. A failure is returned
    /// once, behind the bytes that came before it.
    pub fn read(&mut self, now: Time, socket: Socket, out: &mut [u8]) -> Result<usize, Errno> {
        let stream = self.stream(socket)?;
        if out.is_empty() {
            return Ok(0);
        }
        match self.host.read(now, stream.flow, out) {
            Ok(Read::Bytes(len)) => Ok(len),
            Ok(Read::End) => Ok(0),
            Ok(Read::Empty) if stream.read_shut => Ok(0),
            Ok(Read::Empty) => Err(Errno::WouldBlock),
            Err(ReadError::Closed) => Err(Errno::BadDescriptor),
            Err(ReadError::Failed(failure)) => {
                if std::mem::replace(&mut self.stream_mut(socket)?.reported, true) {
                    return Ok(0);
                }
                Err(failure.into())
            }
        }
    }

    /// As [`read`](Sockets::read), and leaves the bytes to be read again (MSG_PEEK).
    pub fn peek(&mut self, now: Time, socket: Socket, out: &mut [u8]) -> Result<usize, Errno> {
        let flow = self.stream(socket)?.flow;
        match self.host.peek(flow, out) {
            // The end of the stream, a failure and their absence are as for a read.
            0 => self.read(now, socket, out),
            len => Ok(len),
        }
    }

    /// Writes bytes, as many as there is room for and at least one.
    pub fn write(&mut self, now: Time, socket: Socket, bytes: &[u8]) -> Result<usize, Errno> {
        let flow = self.stream(socket)?.flow;
        let info = self.host.info(flow).ok_or(Errno::BadDescriptor)?;
        if matches!(info.state, State::SynSent | State::SynReceived) {
            return Err(Errno::WouldBlock);
        }
        let written = match self.host.write(now, flow, bytes) {
            Ok(written) => written,
            Err(WriteError::Ended) => return Err(Errno::Pipe),
            Err(WriteError::Failed(failure)) => {
                let reported = std::mem::replace(&mut self.stream_mut(socket)?.reported, true);
                return Err(if reported { Errno::Pipe } else { failure.into() });
            }
        };
        let queued = (info.unacknowledged + info.unsent) as usize + written;
        if written < bytes.len() || queued >= self.host.send_space(flow) as usize {
            self.stream_mut(socket)?.full = true;
        }
        if written == 0 && !bytes.is_empty() { Err(Errno::WouldBlock) } else { Ok(written) }
    }

    /// Ends one or both directions of a connection.
    pub fn shutdown(&mut self, now: Time, socket: Socket, how: How) -> Result<(), Errno> {
        let flow = self.stream(socket)?.flow;
        let info = self.host.info(flow).ok_or(Errno::BadDescriptor)?;
        if matches!(info.state, State::SynSent | State::Closed) {
            return Err(Errno::NotConnected);
        }
        if how != How::Write {
            self.stream_mut(socket)?.read_shut = true;
            self.wake(socket.0, Readiness::READABLE);
        }
        if how != How::Read {
            self.host.shutdown(now, flow);
            self.events();
        }
        Ok(())
    }

    /// Ends a connection as if its peer had not answered for too long: ETIMEDOUT.
    pub fn time_out(&mut self, socket: Socket) -> Result<(), Errno> {
        let flow = self.stream(socket)?.flow;
        self.host.time_out(flow);
        self.events();
        Ok(())
    }

    /// SO_ERROR: why the connection failed, once.
    pub fn take_error(&mut self, socket: Socket) -> Result<Option<Errno>, Errno> {
        match self.entry(socket)?.kind {
            super::Kind::Stream(_) => Ok(self.failure(socket).err()),
            _ => Ok(None),
        }
    }

    /// FIONREAD: bytes that can be read now.
    pub fn unread(&self, socket: Socket) -> Result<usize, Errno> {
        Ok(self.info(socket)?.unread as usize)
    }

    /// TCP_INFO: state of a connection.
    pub fn info(&self, socket: Socket) -> Result<Info, Errno> {
        let flow = self.stream(socket)?.flow;
        self.host.info(flow).ok_or(Errno::BadDescriptor)
    }

    /// The failure of a connection as an error, unless the program was given it before.
    pub(super) fn failure(&mut self, socket: Socket) -> Result<(), Errno> {
        let flow = self.stream(socket)?.flow;
        let Some(failure) = self.cause(flow) else { return Ok(()) };
        if std::mem::replace(&mut self.stream_mut(socket)?.reported, true) {
            return Ok(());
        }
        Err(failure.into())
    }

    /// Why a connection failed.
    pub(super) fn cause(&self, flow: Flow) -> Option<Failure> {
        self.host.stack.slot(flow).and_then(|slot| self.host.stack.flows[slot].failure)
    }
}
