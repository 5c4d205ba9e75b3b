//! Pipes of a context: bytes from one number to another.

use std::collections::VecDeque;

use tcp::sockets::Readiness;

use crate::errno::{AGAIN, Errno};
use crate::files::Member;

/// Bytes that a pipe holds, as pipe(7).
const ROOM: usize = 64 << 10;

/// A pipe.
#[derive(Default)]
pub(crate) struct Pipe {
    bytes: VecDeque<u8>,
    /// Ends that are closed: for reading, for writing.
    pub(crate) closed: [bool; 2],
    /// Epoll sets that its ends are in.
    pub(crate) members: [Vec<Member>; 2],
}

/// Which end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Read = 0,
    Write = 1,
}

impl Pipe {
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
        if self.bytes.is_empty() && !self.closed[End::Write as usize] {
            return Err(AGAIN);
        }
        let len = out.len().min(self.bytes.len());
        for (to, byte) in out.iter_mut().zip(self.bytes.drain(..len)) {
            *to = byte;
        }
        Ok(len)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.closed[End::Read as usize] {
            return Err(Errno(libc::EPIPE));
        }
        let len = bytes.len().min(ROOM - self.bytes.len());
        if len == 0 && !bytes.is_empty() {
            return Err(AGAIN);
        }
        self.bytes.extend(&bytes[..len]);
        Ok(len)
    }

    pub(crate) fn unread(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a call on this end would not return EAGAIN.
    pub(crate) fn readiness(&self, end: End) -> Readiness {
        let closed = self.closed;
        match end {
            End::Read if !self.bytes.is_empty() || closed[End::Write as usize] => Readiness::READABLE,
            End::Write if closed[End::Read as usize] => Readiness::WRITABLE.with(Readiness::ERROR),
            End::Write if self.bytes.len() < ROOM => Readiness::WRITABLE,
            _ => Readiness::NONE,
        }
    }
}
